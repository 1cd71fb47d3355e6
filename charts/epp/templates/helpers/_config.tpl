{{- /* The file that is read as configuration; empty: none, the built-in policy. */ -}}
{{- define "epp.configFile" -}}
{{- $v := .values -}}
{{- if $v.config -}}
{{- $v.configFile | default "config.yaml" -}}
{{- else if and $v.configFile (hasKey $v.configFiles $v.configFile) -}}
{{- $v.configFile -}}
{{- else if and $v.configFile (ne $v.configFile "default-plugins.yaml") -}}
{{- fail (printf "configFile: %s is not in configFiles" $v.configFile) -}}
{{- else if include "epp.scrapesOtherwise" . -}}
scraping.yaml
{{- end -}}
{{- end -}}

{{- /* "true" if model servers are scraped in another way than the picker would by itself. */ -}}
{{- define "epp.scrapesOtherwise" -}}
{{- $s := .values.scraping -}}
{{- if or (ne $s.engine "vllm") (ne $s.scheme "http") (ne $s.path "/metrics") -}}true{{- end -}}
{{- end -}}

{{- /* A configuration that names no policy, so that the built-in one stays. */ -}}
{{- define "epp.scraping" -}}
{{- $s := .values.scraping -}}
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: metrics-data-source
    parameters:
      scheme: {{ $s.scheme }}
      path: {{ $s.path | quote }}
      insecureSkipVerify: {{ $s.insecureSkipVerify }}
  - type: core-metrics-extractor
    parameters:
      defaultEngine: {{ $s.engine }}
{{- end -}}

{{- define "epp.hasConfig" -}}
{{- if or .values.configFiles (include "epp.configFile" .) -}}true{{- end -}}
{{- end -}}
