{{- /*
The bootstrap that `epp gateway` prints, with this release's ports and hosts in place of those in
the file's first line, and before the other filters those that read answers.
*/ -}}
{{- define "epp.bootstrap" -}}
{{- $v := .values -}}
{{- $file := printf "files/envoy-%s-%s.yaml" $v.envoy.bootstrap $v.envoy.placement -}}
{{- $filters := "" -}}
{{- if and $v.envoy.leanUsage (eq $v.envoy.bootstrap "lean") -}}
{{- $filters = .root.Files.Get "files/envoy-lean-usage-filters.yaml" -}}
{{- end -}}
{{- if and $v.envoy.leanTtft (eq $v.envoy.bootstrap "lean") -}}
{{- $filters = .root.Files.Get "files/envoy-lean-ttft-filters.yaml" | print $filters -}}
{{- end -}}
{{- .root.Files.Get $file
    | replace "httpFilters:\n" (printf "httpFilters:%s\n" (trimSuffix "\n" $filters | nindent 10 | trimSuffix "\n          "))
    | replace "portValue: 8081" (printf "portValue: %d" (int $v.envoy.port))
    | replace "portValue: 9002" (printf "portValue: %d" (int $v.picker.ports.extProc))
    | replace "address: 0.0.0.0" (printf "address: %s" (quote $v.envoy.listenHost))
    | replace "address: picker.invalid" (printf "address: %s" (include "epp.host" .)) -}}
{{- end -}}

{{- /* Seconds that Envoy stays up after its pod is to go: as long as requests may take. */ -}}
{{- define "epp.envoyGrace" -}}
{{- add (int .values.picker.preStopSeconds) (int .values.picker.drainSeconds) -}}
{{- end -}}

{{- define "epp.envoyContainer" -}}
{{- $v := .values.envoy -}}
name: envoy
image: {{ $v.image }}
args:
  - --config-path
  - /etc/envoy/envoy.yaml
  - --log-level
  - {{ $v.logLevel }}
  - --service-node
  - $(POD_NAME)
  - --service-cluster
  - {{ include "epp.envoyName" .root }}
env:
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
ports:
  - {name: http, containerPort: {{ int $v.port }}}
readinessProbe:
  tcpSocket: {port: http}
  periodSeconds: 2
{{- if include "epp.envoyGrace" . | int }}
lifecycle:
  preStop: {sleep: {seconds: {{ include "epp.envoyGrace" . }}}}
{{- end }}
resources:
{{ toYaml $v.resources | indent 2 }}
securityContext:
{{ toYaml .values.picker.securityContext | indent 2 }}
volumeMounts:
  - {name: envoy, mountPath: /etc/envoy, readOnly: true}
  - {name: tmp, mountPath: /tmp}
{{- end -}}
