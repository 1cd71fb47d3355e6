{{- /* Arguments of `epp serve`, one a line of a YAML list. */ -}}
{{- define "epp.terminal.arguments" -}}
{{- $v := .values -}}
{{- $ports := $v.picker.ports -}}
{{- if include "epp.watchesPool" . }}
{{- if $v.pools.all }}
- --all-pools=true
{{- else }}
- --pool-name={{ include "epp.poolNames" . }}
{{- end }}
{{- if $v.pools.ports }}
- --pool-ports=true
{{- end }}
- --pool-namespace={{ .root.Release.Namespace }}
- --pool-group={{ $v.pool.group }}
{{- else if $v.picker.endpoints }}
- --endpoints={{ join "," $v.picker.endpoints }}
- --pool-name={{ include "epp.pool" . }}
{{- else }}
- --endpoint-selector={{ include "epp.labelSelector" $v.pool.matchLabels }}
- --endpoint-target-ports={{ include "epp.targetPorts" $v.pool.targetPorts }}
- --pool-namespace={{ .root.Release.Namespace }}
{{- end }}
- --grpc-port={{ int $ports.extProc }}
- --grpc-health-port={{ int $ports.health }}
- --metrics-port={{ int $ports.metrics }}
- --metrics-endpoint-auth={{ $v.monitoring.auth }}
- --secure-serving={{ include "epp.tls" . | default "false" }}
{{- if and (include "epp.tls" .) $v.picker.tls.secretName }}
- --cert-path=/certificates
{{- end }}
- --drain-timeout={{ int $v.picker.drainSeconds }}s
{{- if $v.picker.leaderElection }}
- --ha-enable-leader-election=true
{{- end }}
{{- if include "epp.peers" . }}
- --peers={{ include "epp.peersName" .root }}:{{ int $ports.peers }}
- --peers-port={{ int $ports.peers }}
{{- if $v.picker.peers.secretName }}
- --peers-cert-dir=/peers
{{- end }}
{{- end }}
{{- if $v.tracing.enabled }}
- --tracing=true
{{- end }}
{{- with include "epp.configFile" . }}
- --config-file=/config/{{ . }}
{{- end }}
{{- range $name, $_ := $v.configFiles }}
{{- if hasSuffix ".py" $name }}
- --plugin-path=/config/{{ $name }}
{{- end }}
{{- end }}
{{- range $name, $value := omit (include "epp.flags" . | fromYaml) "secure-serving" "metrics-endpoint-auth" "ha-enable-leader-election" "grpc-port" "grpc-health-port" "metrics-port" }}
- {{ printf "--%s=%s" $name $value | quote }}
{{- end }}
{{- end -}}

{{- define "epp.labelSelector" -}}
{{- $pairs := list -}}
{{- range $key, $value := . -}}{{- $pairs = append $pairs (printf "%s=%s" $key $value) -}}{{- end -}}
{{- join "," $pairs -}}
{{- end -}}

{{- define "epp.targetPorts" -}}
{{- $ports := list -}}
{{- range . -}}{{- $ports = append $ports (int .number) -}}{{- end -}}
{{- join "," $ports -}}
{{- end -}}

{{- define "epp.environment" -}}
- name: NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- with .values.tracing }}
{{- if .enabled }}
- {name: OTEL_SERVICE_NAME, value: {{ include "epp.name" $.root }}}
- {name: OTEL_TRACES_EXPORTER, value: otlp}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ .otelExporterEndpoint | quote }}}
- {name: OTEL_TRACES_SAMPLER, value: {{ .sampling.sampler | quote }}}
- {name: OTEL_TRACES_SAMPLER_ARG, value: {{ .sampling.samplerArg | toString | quote }}}
{{- end }}
{{- end }}
{{- if kindIs "map" .values.picker.env }}
{{- range $name, $value := .values.picker.env }}
- {name: {{ $name }}, value: {{ include "epp.text" $value | quote }}}
{{- end }}
{{- else if .values.picker.env }}
{{ toYaml .values.picker.env }}
{{- end }}
{{- end -}}

{{- define "epp.probes" -}}
{{- $port := int .values.picker.ports.health -}}
startupProbe:
  grpc: {port: {{ $port }}, service: liveness}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  grpc: {port: {{ $port }}, service: liveness}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  grpc: {port: {{ $port }}, service: readiness}
  periodSeconds: 2
{{- end -}}

{{- define "epp.container" -}}
{{- $v := .values -}}
name: epp
image: {{ printf "%s:%s" $v.image.repository ($v.image.tag | default .root.Chart.AppVersion) }}
imagePullPolicy: {{ $v.image.pullPolicy }}
args:
{{- include "epp.terminal.arguments" . | nindent 2 }}
env:
{{- include "epp.environment" . | nindent 2 }}
ports:
  - {name: grpc, containerPort: {{ int $v.picker.ports.extProc }}}
  - {name: grpc-health, containerPort: {{ int $v.picker.ports.health }}}
  - {name: metrics, containerPort: {{ int $v.picker.ports.metrics }}}
{{- if include "epp.peers" . }}
  - {name: grpc-peers, containerPort: {{ int $v.picker.ports.peers }}}
{{- end }}
{{- range $v.pools.ports }}
  - {name: grpc-{{ int . }}, containerPort: {{ int . }}}
{{- end }}
{{- with $v.picker.extraPorts }}
{{ toYaml . | indent 2 }}
{{- end }}
{{ include "epp.probes" . }}
{{- if int $v.picker.preStopSeconds }}
lifecycle:
  preStop: {sleep: {seconds: {{ int $v.picker.preStopSeconds }}}}
{{- end }}
resources:
{{ toYaml $v.picker.resources | indent 2 }}
securityContext:
{{ toYaml $v.picker.securityContext | indent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
{{- if include "epp.hasConfig" . }}
  - {name: config, mountPath: /config, readOnly: true}
{{- end }}
{{- if and (include "epp.tls" .) $v.picker.tls.secretName }}
  - {name: certificates, mountPath: /certificates, readOnly: true}
{{- end }}
{{- if and (include "epp.peers" .) $v.picker.peers.secretName }}
  - {name: peers, mountPath: /peers, readOnly: true}
{{- end }}
{{- with $v.picker.volumeMounts }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end -}}
