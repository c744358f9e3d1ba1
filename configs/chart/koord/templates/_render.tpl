{{/* The manifests of configs/ as objects, with kustomize's components applied. Everything here changes dicts in place: a template can
     only return text. `state` is {docs: [...]}. */}}

{{/* Adds the objects of a text to state.docs; koord's namespace stands in texts within texts too. Takes root, state, text. */}}
{{- define "koord.read" -}}
{{- $text := replace "koordinator-system" .root.Values.installation.namespace .text -}}
{{- range regexSplit "(?m)^---$" $text -1 -}}
  {{- $doc := fromYaml . -}}
  {{- if $doc.Error -}}{{- fail (printf "%s: %s" $.file $doc.Error) -}}{{- end -}}
  {{- if $doc.kind -}}{{- $_ := set $.state "docs" (append $.state.docs $doc) -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Applies a folder of configs/components as kustomize does. Takes root, state, name. */}}
{{- define "koord.component" -}}
{{- $folder := printf "components/%s" .name -}}
{{- $wanted := fromYaml (.root.Files.Get (printf "%s/kustomization.yaml" $folder)) -}}
{{- range $wanted.resources -}}
  {{- $file := printf "%s/%s" $folder . -}}
  {{- include "koord.read" (dict "root" $.root "state" $.state "text" ($.root.Files.Get $file) "file" $file) -}}
{{- end -}}
{{- range $wanted.configMapGenerator -}}
  {{- $data := dict -}}
  {{- range .files -}}{{- $_ := set $data (base .) ($.root.Files.Get (printf "%s/%s" $folder .)) -}}{{- end -}}
  {{- $meta := dict "name" .name "namespace" $.root.Values.installation.namespace "labels" $wanted.generatorOptions.labels -}}
  {{- $_ := set $.state "docs" (append $.state.docs (dict "apiVersion" "v1" "kind" "ConfigMap" "metadata" $meta "data" $data)) -}}
{{- end -}}
{{- range $wanted.patches -}}
  {{- $patch := . -}}
  {{- $kept := list -}}
  {{- range $doc := $.state.docs -}}
    {{- $meant := and (eq $doc.kind $patch.target.kind) (or (not $patch.target.name) (eq $doc.metadata.name ($patch.target.name | default ""))) -}}
    {{- if not $meant -}}{{- $kept = append $kept $doc -}}
    {{- else if not (contains "$patch: delete" $patch.patch) -}}
      {{- range fromYamlArray $patch.patch -}}{{- include "koord.operation" (dict "doc" $doc "op" .) -}}{{- end -}}
      {{- $kept = append $kept $doc -}}
    {{- end -}}
  {{- end -}}
  {{- $_ := set $.state "docs" $kept -}}
{{- end -}}
{{- end -}}

{{/* One JSON patch operation (add, replace, remove, copy) on a dict. Elements of lists can be walked through and appended. */}}
{{- define "koord.operation" -}}
{{- $value := .op.value -}}
{{- if eq .op.op "copy" -}}
  {{- $from := .doc -}}
  {{- range (splitList "/" .op.from | rest) -}}
    {{- if kindIs "slice" $from -}}{{- $from = index $from (int .) -}}{{- else -}}{{- $from = index $from . -}}{{- end -}}
  {{- end -}}
  {{- $value = deepCopy $from -}}
{{- end -}}
{{- $parts := splitList "/" .op.path | rest -}}
{{- $last := last $parts -}}
{{- $holder := .doc -}}{{- $at := .doc -}}{{- $key := "" -}}
{{- range initial $parts -}}
  {{- if kindIs "slice" $at -}}{{- $at = index $at (int .) -}}
  {{- else -}}{{- $holder = $at -}}{{- $key = . -}}{{- $at = index $at . -}}{{- end -}}
{{- end -}}
{{- if kindIs "slice" $at -}}
  {{- if not (or (eq $last "-") (eq (int $last) (len $at))) -}}{{- fail (printf "cannot change %s: only the end of a list can be added to" .op.path) -}}{{- end -}}
  {{- $_ := set $holder $key (append $at $value) -}}
{{- else if eq .op.op "remove" -}}{{- $_ := unset $at $last -}}
{{- else -}}{{- $_ := set $at $last $value -}}
{{- end -}}
{{- end -}}
