{{- /* Values that contradict each other end the rendering, and say why. */ -}}
{{- define "epp.check" -}}
{{- $v := .values -}}
{{- if not (or $v.pool.matchLabels $v.picker.endpoints (and (ne (toString $v.pool.create) "true") $v.pool.name)) -}}
{{- fail "pool.matchLabels is needed: the labels of the model servers' pods" -}}
{{- end -}}
{{- if and (include "epp.makesPool" .) (not $v.pool.matchLabels) -}}
{{- fail "pool.matchLabels is needed to create the InferencePool" -}}
{{- end -}}
{{- if and (include "epp.makesPool" .) (ne $v.pool.group "inference.networking.k8s.io") -}}
{{- fail "pool.create makes pools of inference.networking.k8s.io only" -}}
{{- end -}}
{{- if and (eq $v.mode "standalone") (eq $v.envoy.placement "service") (not (include "epp.tls" .)) -}}
{{- fail "envoy.placement: service needs picker.tls.enabled: Envoy reaches the picker over the network" -}}
{{- end -}}
{{- if and $v.picker.leaderElection (lt (int $v.picker.replicas) 2) -}}
{{- fail "picker.leaderElection needs picker.replicas of 2 or more" -}}
{{- end -}}
{{- end -}}
