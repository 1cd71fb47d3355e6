{{- /* Name before `-epp`, and of the pool. */ -}}
{{- define "epp.base" -}}
{{- .Values.nameOverride | default .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "epp.name" -}}
{{- printf "%s-epp" (include "epp.base" .) -}}
{{- end -}}

{{- define "epp.envoyName" -}}
{{- printf "%s-envoy" (include "epp.base" .) -}}
{{- end -}}

{{- define "epp.pool" -}}
{{- .values.pool.name | default (include "epp.base" .root) -}}
{{- end -}}

{{- define "epp.host" -}}
{{- printf "%s.%s.svc.%s" (include "epp.name" .root) .root.Release.Namespace .values.clusterDomain -}}
{{- end -}}

{{- define "epp.account" -}}
{{- .values.serviceAccount.name | default (ternary (include "epp.name" .root) "default" .values.serviceAccount.create) -}}
{{- end -}}

{{- /* What a selector selects: never changes between versions. */ -}}
{{- define "epp.selector" -}}
app.kubernetes.io/name: epp
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: picker
{{- end -}}

{{- define "epp.envoySelector" -}}
app.kubernetes.io/name: epp
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: envoy
{{- end -}}

{{- define "epp.labels" -}}
app.kubernetes.io/name: epp
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* "true" if the chart makes the InferencePool. */ -}}
{{- define "epp.makesPool" -}}
{{- $create := toString .values.pool.create -}}
{{- $wanted := or .values.pool.matchLabels (not (include "epp.manyPools" .)) -}}
{{- if or (eq $create "true") (and (eq $create "auto") (eq .values.mode "gateway") $wanted) -}}true{{- end -}}
{{- end -}}

{{- /* "true" if the picker serves pools by name, or all of the namespace. */ -}}
{{- define "epp.manyPools" -}}
{{- if or .values.pools.all .values.pools.names -}}true{{- end -}}
{{- end -}}

{{- /* Names of the pools to serve, with commas. */ -}}
{{- define "epp.poolNames" -}}
{{- $own := ternary (list (include "epp.pool" .)) list (or (eq (include "epp.makesPool" .) "true") (ne (include "epp.manyPools" .) "true")) -}}
{{- join "," (concat $own .values.pools.names | uniq) -}}
{{- end -}}

{{- /* "true" if the picker watches an InferencePool, ours or another's. */ -}}
{{- define "epp.watchesPool" -}}
{{- $named := or (include "epp.makesPool" .) .values.pool.name (eq .values.mode "gateway") -}}
{{- if and $named (not .values.picker.endpoints) -}}true{{- end -}}
{{- end -}}

{{- /* "true" if the picker asks the cluster's API anything. */ -}}
{{- define "epp.asksCluster" -}}
{{- if or .values.picker.leaderElection .values.monitoring.auth (not .values.picker.endpoints) -}}true{{- end -}}
{{- end -}}

{{- /* "true" if replicas tell each other. */ -}}
{{- define "epp.peers" -}}
{{- if and .values.picker.peers.enabled (gt (int .values.picker.replicas) 1) -}}true{{- end -}}
{{- end -}}

{{- define "epp.peersName" -}}
{{- printf "%s-peers" (include "epp.name" .) -}}
{{- end -}}

{{- define "epp.sidecar" -}}
{{- if and (eq .values.mode "standalone") (eq .values.envoy.placement "sidecar") -}}true{{- end -}}
{{- end -}}

{{- /* The flags as a map of texts; older charts give a list of name and value. */ -}}
{{- define "epp.flags" -}}
{{- $flags := .values.picker.flags -}}
{{- if kindIs "slice" $flags -}}
{{- $map := dict -}}
{{- range $flags -}}{{- $_ := set $map .name .value -}}{{- end -}}
{{- $flags = $map -}}
{{- end -}}
{{- range $name, $value := $flags }}
{{ $name }}: {{ include "epp.text" $value | quote }}
{{- end -}}
{{- end -}}

{{- /* A value as text; whole numbers without an exponent. */ -}}
{{- define "epp.text" -}}
{{- if kindIs "float64" . -}}
{{- if eq (floor .) . -}}{{- int64 . -}}{{- else -}}{{- . -}}{{- end -}}
{{- else if not (kindIs "invalid" .) -}}{{- toString . -}}
{{- end -}}
{{- end -}}

{{- /* "true" if the ext_proc port speaks TLS. */ -}}
{{- define "epp.tls" -}}
{{- $flags := include "epp.flags" . | fromYaml -}}
{{- $told := get $flags "secure-serving" | default "true" -}}
{{- if and .values.picker.tls.enabled (ne $told "false") (not (include "epp.sidecar" .)) -}}true{{- end -}}
{{- end -}}

{{- /* The ClusterRole for reviews: its name is the whole cluster's. */ -}}
{{- define "epp.reviews" -}}
{{- printf "%s-%s-reviews" .Release.Namespace (include "epp.name" .) -}}
{{- end -}}
