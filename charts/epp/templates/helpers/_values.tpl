{{- /*
The values with those of other charts translated, as YAML: every template starts with it.
Numbers come back as floats, so ports are rendered with `int`.
*/ -}}
{{- define "epp.values" -}}
{{- $values := omit (deepCopy .Values) "router" "inferenceExtension" "inferencePool" "inferenceObjectives" "httpRoute" "experimentalHttpRoute" -}}
{{- range $rule := .Files.Get "files/translations.yaml" | fromYamlArray -}}
{{- range $from := $rule.from -}}
{{- $found := include "epp.at" (dict "values" $.Values "path" $from) | fromYaml -}}
{{- if and (hasKey $found "value") (hasKey $rule "to") -}}
{{- $value := $found.value -}}
{{- if hasKey $rule "read" -}}
{{- $value = include "epp.read" (dict "rule" $rule "from" $from "value" $value) -}}
{{- end -}}
{{- if has (toString $value) (list "true" "false") -}}
{{- $value = eq (toString $value) "true" -}}
{{- end -}}
{{- $path := splitList "." $rule.to -}}
{{- $into := $values -}}
{{- range $key := initial $path -}}
{{- $into = get $into $key -}}
{{- end -}}
{{- $_ := set $into (last $path) $value -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $values -}}
{{- end -}}

{{- /*
The value at a dotted path as `value: ...`, or nothing if there is none. A list of `name` and
`value` counts as a map.
*/ -}}
{{- define "epp.at" -}}
{{- $at := .values -}}
{{- $found := true -}}
{{- range $key := splitList "." .path -}}
{{- if kindIs "slice" $at -}}
{{- $map := dict -}}
{{- range $at -}}
{{- if and (kindIs "map" .) (hasKey . "name") -}}{{- $_ := set $map .name .value -}}{{- end -}}
{{- end -}}
{{- $at = $map -}}
{{- end -}}
{{- if and $found (kindIs "map" $at) -}}
{{- if hasKey $at $key -}}{{- $at = get $at $key -}}{{- else -}}{{- $found = false -}}{{- end -}}
{{- else -}}
{{- $found = false -}}
{{- end -}}
{{- end -}}
{{- if $found -}}{{- dict "value" $at | toYaml -}}{{- end -}}
{{- end -}}

{{- define "epp.read" -}}
{{- $text := toString .value -}}
{{- if not (hasKey .rule.read $text) -}}
{{- fail (printf "%s: %s is not one of %s" .from $text (keys .rule.read | sortAlpha | join ", ")) -}}
{{- end -}}
{{- get .rule.read $text -}}
{{- end -}}

{{- /* One line for each value given that changes nothing. */ -}}
{{- define "epp.ignored" -}}
{{- range $rule := .Files.Get "files/translations.yaml" | fromYamlArray -}}
{{- range $from := $rule.from -}}
{{- if and (hasKey $rule "ignored") (include "epp.at" (dict "values" $.Values "path" $from)) }}
* {{ $from }} changes nothing: {{ $rule.ignored }}.
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
