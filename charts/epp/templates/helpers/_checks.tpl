{{- /* Values that contradict each other end the rendering, and say why. */ -}}
{{- define "epp.commands.check" -}}
{{- $v := .values -}}
{{- $many := include "epp.manyPools" . -}}
{{- if and $many (or (ne $v.mode "gateway") $v.picker.endpoints) -}}
{{- fail "pools needs mode: gateway, and no picker.endpoints" -}}
{{- end -}}
{{- if and (or $v.pools.ports $v.pools.configMaps) (not $many) -}}
{{- fail "pools.ports and pools.configMaps need pools.all or pools.names" -}}
{{- end -}}
{{- if and $many (not (include "epp.makesPool" .)) (or $v.route.create $v.objectives) -}}
{{- fail "route.create and objectives are for the chart's own pool: set pool.matchLabels" -}}
{{- end -}}
{{- if not (or $many $v.pool.matchLabels $v.picker.endpoints (and (ne (toString $v.pool.create) "true") $v.pool.name)) -}}
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
