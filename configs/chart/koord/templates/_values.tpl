{{/* What values change on the objects of the manifests. A value that is not set changes nothing. */}}

{{/* Puts --name=value in the place of the flag, or at the end. Takes container, name, value. */}}
{{- define "koord.flag" -}}
{{- $given := printf "--%s=" .name -}}
{{- $found := list -}}{{- $there := false -}}
{{- range .container.args -}}
  {{- if hasPrefix $given . -}}{{- $there = true -}}{{- $found = append $found (printf "%s%v" $given $.value) -}}
  {{- else -}}{{- $found = append $found . -}}{{- end -}}
{{- end -}}
{{- if not $there -}}{{- $found = append $found (printf "%s%v" $given .value) -}}{{- end -}}
{{- $_ := set .container "args" $found -}}
{{- end -}}

{{/* Takes container, name, value (a number). */}}
{{- define "koord.port" -}}
{{- range .container.ports -}}{{- if eq .name $.name -}}{{- $_ := set . "containerPort" (int $.value) -}}{{- end -}}{{- end -}}
{{- end -}}

{{/* Takes container, name, value. */}}
{{- define "koord.env" -}}
{{- $found := list -}}
{{- range .container.env -}}{{- if ne .name $.name -}}{{- $found = append $found . -}}{{- end -}}{{- end -}}
{{- $_ := set .container "env" (append $found (dict "name" .name "value" (toString .value))) -}}
{{- end -}}

{{/* A directory of the node, and what is below it, is mounted from and at another place. Takes pod, container, from, to. */}}
{{- define "koord.moved" -}}
{{- range .pod.volumes -}}
  {{- with .hostPath -}}
    {{- if hasPrefix (printf "%s/" $.from) (printf "%s/" .path) -}}{{- $_ := set . "path" (printf "%s%s" $.to (trimPrefix $.from .path)) -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- $from := printf "/host%s" .from -}}
{{- range .container.volumeMounts -}}
  {{- if hasPrefix (printf "%s/" $from) (printf "%s/" .mountPath) -}}{{- $_ := set . "mountPath" (printf "/host%s%s" $.to (trimPrefix $from .mountPath)) -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Mounts a directory of the node to be written to, unless it is below one that is. Takes pod, container, name, path. */}}
{{- define "koord.directory" -}}
{{- $path := printf "/host%s" .path -}}
{{- $there := false -}}
{{- range .container.volumeMounts -}}
  {{- if and (not .readOnly) (hasPrefix (printf "%s/" .mountPath) (printf "%s/" $path)) -}}{{- $there = true -}}{{- end -}}
{{- end -}}
{{- if not $there -}}
  {{- $_ := set .container "volumeMounts" (append .container.volumeMounts (dict "name" .name "mountPath" $path)) -}}
  {{- $_ := set .pod "volumes" (append .pod.volumes (dict "name" .name "hostPath" (dict "path" .path "type" "DirectoryOrCreate"))) -}}
{{- end -}}
{{- end -}}

{{/* host/repository:tag, or @digest, from the manifest's, imageRepositoryHost, image and the role's image. Takes root, values, image (the manifest's). */}}
{{- define "koord.image" -}}
{{- $own := .values.image | default dict -}}
{{- $all := .root.Values.image | default dict -}}
{{- $host := regexFind "^[^/]+" .image -}}
{{- $tag := regexFind "[^:]+$" .image -}}
{{- $repository := .image | trimPrefix (printf "%s/" $host) | trimSuffix (printf ":%s" $tag) | trimSuffix "@sha256" -}}
{{- $digest := $all.digest | default (ternary (printf "sha256:%s" $tag) "" (contains "@sha256:" .image)) -}}
{{- $host = $own.host | default .root.Values.imageRepositoryHost | default $host -}}
{{- $named := printf "%s/%s" $host ($own.repository | default $all.repository | default $repository) -}}
{{- if $digest -}}{{- printf "%s@%s" $named $digest -}}{{- else -}}{{- printf "%s:%s" $named ($own.tag | default $all.tag | default $tag) -}}{{- end -}}
{{- end -}}

{{/* Scheduler and descheduler read their configuration once: other values of it make other pods. Takes doc, said (the values). */}}
{{- define "koord.read-once" -}}
{{- if .said -}}
  {{- $meta := .doc.spec.template.metadata -}}
  {{- $_ := set $meta "annotations" (set ($meta.annotations | default dict) "checksum/config" (toJson .said | sha256sum)) -}}
{{- end -}}
{{- end -}}

{{/* What every workload takes. Takes root, doc, values. */}}
{{- define "koord.workload" -}}
{{- $pod := .doc.spec.template.spec -}}
{{- $container := index $pod.containers 0 -}}
{{- $v := .values -}}
{{- $_ := set $container "image" (include "koord.image" (dict "root" .root "values" $v "image" $container.image)) -}}
{{- with .root.Values.image.pullPolicy -}}{{- $_ := set $container "imagePullPolicy" . -}}{{- end -}}
{{- with .root.Values.imagePullSecrets -}}{{- $_ := set $pod "imagePullSecrets" . -}}{{- end -}}
{{- if not (kindIs "invalid" $v.replicas) -}}{{- $_ := set .doc.spec "replicas" (int $v.replicas) -}}{{- end -}}
{{- with $v.resources -}}{{- $_ := set $container "resources" . -}}{{- end -}}
{{- if not (kindIs "invalid" $v.hostNetwork) -}}
  {{- $_ := set $pod "hostNetwork" $v.hostNetwork -}}
  {{- if $v.hostNetwork -}}{{- $_ := set $pod "dnsPolicy" "ClusterFirstWithHostNet" -}}{{- end -}}
{{- end -}}
{{- with $v.priorityClassName -}}{{- $_ := set $pod "priorityClassName" . -}}{{- end -}}
{{- with $v.affinity -}}{{- $_ := set $pod "affinity" (deepCopy .) -}}{{- end -}}
{{- with $v.nodeAffinity -}}
  {{- $affinity := $pod.affinity | default dict -}}
  {{- $_ := set $affinity "nodeAffinity" (index . "nodeAffinity" | default .) -}}
  {{- $_ := set $pod "affinity" $affinity -}}
{{- end -}}
{{- with $v.nodeSelector -}}{{- $_ := set $pod "nodeSelector" . -}}{{- end -}}
{{- with $v.tolerations -}}{{- $_ := set $pod "tolerations" . -}}{{- end -}}
{{- with $v.runtimeClassName -}}{{- $_ := set $pod "runtimeClassName" . -}}{{- end -}}
{{- $level := ($v.log | default dict).level -}}
{{- if not (or (kindIs "invalid" $level) (eq (toString $level) "")) -}}{{- include "koord.flag" (dict "container" $container "name" "v" "value" $level) -}}{{- end -}}
{{- range $v.extraArgs -}}{{- $_ := set $container "args" (append $container.args .) -}}{{- end -}}
{{- end -}}

{{- define "koord.manager" -}}
{{- $v := .root.Values.manager -}}{{- $container := index .doc.spec.template.spec.containers 0 -}}
{{- with .root.Values.featureGates -}}{{- include "koord.flag" (dict "container" $container "name" "feature-gates" "value" .) -}}{{- end -}}
{{- if or $v.metrics.port $v.metrics.addr -}}
  {{- include "koord.flag" (dict "container" $container "name" "metrics-addr" "value" (printf "%s:%v" ($v.metrics.addr | default "[::]") ($v.metrics.port | default 8080))) -}}
  {{- include "koord.port" (dict "container" $container "name" "metrics" "value" ($v.metrics.port | default 8080)) -}}
{{- end -}}
{{- with $v.healthProbe.port -}}
  {{- include "koord.flag" (dict "container" $container "name" "health-probe-addr" "value" (printf "[::]:%v" .)) -}}
  {{- include "koord.port" (dict "container" $container "name" "health" "value" .) -}}
{{- end -}}
{{- with $v.webhook.port -}}
  {{- include "koord.env" (dict "container" $container "name" "WEBHOOK_PORT" "value" .) -}}
  {{- include "koord.port" (dict "container" $container "name" "webhook" "value" .) -}}
{{- end -}}
{{- with $v.resyncPeriod -}}{{- include "koord.flag" (dict "container" $container "name" "sync-period" "value" .) -}}{{- end -}}
{{- $policies := list -}}
{{- range $resource, $policy := .root.Values.webhookConfiguration.failurePolicy -}}
  {{- if $policy -}}{{- $policies = append $policies (printf "%s=%s" $resource $policy) -}}{{- end -}}
{{- end -}}
{{- with $policies -}}{{- include "koord.env" (dict "container" $container "name" "WEBHOOK_FAILURE_POLICY" "value" (join "," .)) -}}{{- end -}}
{{- with .root.Values.webhookConfiguration.timeoutSeconds -}}
  {{- include "koord.env" (dict "container" $container "name" "WEBHOOK_TIMEOUT_SECONDS" "value" .) -}}
{{- end -}}
{{- end -}}

{{/* The scheduler's feature gates for this Kubernetes. Takes the root. */}}
{{- define "koord.scheduler-gates" -}}
{{- $v := .Values.scheduler -}}{{- $gates := $v.featureGates -}}
{{- if semverCompare "<1.22-0" .Capabilities.KubeVersion.Version -}}{{- $gates = $v.compatibleBelow122FeatureGates | default $gates -}}
{{- else if semverCompare "<1.23-0" .Capabilities.KubeVersion.Version -}}{{- $gates = $v.compatible122FeatureGates | default $gates -}}{{- end -}}
{{- $gates -}}
{{- end -}}

{{- define "koord.scheduler" -}}
{{- $v := .root.Values.scheduler -}}{{- $container := index .doc.spec.template.spec.containers 0 -}}
{{- $said := dict -}}
{{- with $v.config -}}{{- $_ := set $said "config" . -}}{{- end -}}
{{- if not (kindIs "invalid" $v.enableJobPreemption) -}}{{- $_ := set $said "enableJobPreemption" $v.enableJobPreemption -}}{{- end -}}
{{- include "koord.read-once" (dict "doc" .doc "said" $said) -}}
{{- /* The loopback is then the node's: everybody there could read from it, and a descheduler listens at the same port. Who names a port has it. */ -}}
{{- $named := false -}}{{- range $v.extraArgs -}}{{- if regexMatch "^--port(=|$)" . -}}{{- $named = true -}}{{- end -}}{{- end -}}
{{- if and $v.hostNetwork (not $named) (not (has "open-ports" .root.Values.variants)) -}}{{- include "koord.flag" (dict "container" $container "name" "port" "value" "0") -}}{{- end -}}
{{- with include "koord.scheduler-gates" .root -}}{{- include "koord.flag" (dict "container" $container "name" "feature-gates" "value" .) -}}{{- end -}}
{{- with $v.port -}}
  {{- include "koord.flag" (dict "container" $container "name" "secure-port" "value" .) -}}
  {{- include "koord.port" (dict "container" $container "name" "https" "value" .) -}}
{{- end -}}
{{- end -}}

{{- define "koord.descheduler" -}}
{{- $v := .root.Values.descheduler -}}{{- $container := index .doc.spec.template.spec.containers 0 -}}
{{- include "koord.read-once" (dict "doc" .doc "said" $v.config) -}}
{{- with $v.featureGates -}}{{- include "koord.flag" (dict "container" $container "name" "feature-gates" "value" .) -}}{{- end -}}
{{- /* It has the scheduler's file and asks what the scheduler would do: the gates belong to it. Who names some has those. */ -}}
{{- $named := false -}}{{- range $v.extraArgs -}}{{- if hasPrefix "--scheduler-feature-gates" . -}}{{- $named = true -}}{{- end -}}{{- end -}}
{{- with include "koord.scheduler-gates" .root -}}
  {{- if not $named -}}{{- include "koord.flag" (dict "container" $container "name" "scheduler-feature-gates" "value" .) -}}{{- end -}}
{{- end -}}
{{- with $v.port -}}
  {{- include "koord.flag" (dict "container" $container "name" "secure-port" "value" .) -}}
  {{- include "koord.port" (dict "container" $container "name" "https" "value" .) -}}
{{- end -}}
{{- end -}}

{{- define "koord.koordlet" -}}
{{- $v := .root.Values.koordlet -}}{{- $container := index .doc.spec.template.spec.containers 0 -}}
{{- with $v.features -}}{{- include "koord.flag" (dict "container" $container "name" "feature-gates" "value" .) -}}{{- end -}}
{{- with $v.metrics.port -}}
  {{- include "koord.flag" (dict "container" $container "name" "addr" "value" (printf "[$(POD_IP)]:%v" .)) -}}
  {{- include "koord.port" (dict "container" $container "name" "http" "value" .) -}}
{{- end -}}
{{- $pod := .doc.spec.template.spec -}}
{{- $dirs := dict -}}
{{- range $key, $directory := $v.hostDirs -}}{{- with $directory -}}{{- $_ := set $dirs $key (trimSuffix "/" .) -}}{{- end -}}{{- end -}}
{{- with $dirs.kubeletLibDir -}}
  {{- include "koord.flag" (dict "container" $container "name" "var-lib-kubelet-dir" "value" (printf "/host%s" .)) -}}
  {{- include "koord.moved" (dict "pod" $pod "container" $container "from" "/var/lib/kubelet" "to" .) -}}
{{- end -}}
{{- if not (has "koordlet-observe" .root.Values.variants) -}}
  {{- with $dirs.koordProxyRegisterDir -}}
    {{- include "koord.flag" (dict "container" $container "name" "runtime-hooks-config-path" "value" (printf "/host%s" .)) -}}
    {{- include "koord.moved" (dict "pod" $pod "container" $container "from" "/etc/runtime/hookserver.d" "to" .) -}}
  {{- end -}}
  {{- with $dirs.koordletSockDir -}}
    {{- include "koord.flag" (dict "container" $container "name" "runtime-hooks-addr" "value" (printf "/host%s/koordlet.sock" .)) -}}
    {{- include "koord.flag" (dict "container" $container "name" "runtime-hooks-host-endpoint" "value" (printf "%s/koordlet.sock" .)) -}}
    {{- include "koord.directory" (dict "pod" $pod "container" $container "name" "hook-socket" "path" .) -}}
  {{- end -}}
  {{- $flags := dict "predictionCheckpointDir" "prediction-checkpoint-filepath" "koordletTSDBDir" "tsdb-path" "podResourcesProxyPath" "pod-resources-proxy-path" -}}
  {{- range $key, $flag := $flags -}}
    {{- with index $dirs $key -}}
      {{- include "koord.flag" (dict "container" $container "name" $flag "value" (printf "/host%s" .)) -}}
      {{- include "koord.directory" (dict "pod" $pod "container" $container "name" (kebabcase $key) "path" .) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* ConfigMaps: a role's whole configuration, or single keys of it. Takes root, doc. */}}
{{- define "koord.config" -}}
{{- $values := .root.Values -}}{{- $data := .doc.data -}}
{{- if eq .doc.metadata.name "slo-controller-config" -}}
  {{- range $key, $text := $values.sloControllerConfig -}}
    {{- /* set only now: an upgrade leaves keys alone that no value names */ -}}
    {{- $_ := set $.doc "data" (merge (dict $key (ternary $text (toJson $text) (kindIs "string" $text))) ($.doc.data | default dict)) -}}
  {{- end -}}
{{- else if eq .doc.metadata.name "koord-scheduler-config" -}}
  {{- with $values.scheduler.config -}}{{- $_ := set $data "koord-scheduler-config" (ternary . (toYaml .) (kindIs "string" .)) -}}{{- end -}}
  {{- if not (kindIs "invalid" $values.scheduler.enableJobPreemption) -}}
    {{- $config := fromYaml (index $data "koord-scheduler-config") -}}
    {{- range $config.profiles -}}{{- range .pluginConfig -}}
      {{- if eq .name "Coscheduling" -}}{{- $_ := set .args "enablePreemption" $values.scheduler.enableJobPreemption -}}{{- end -}}
    {{- end -}}{{- end -}}
    {{- $_ := set $data "koord-scheduler-config" (toYaml $config) -}}
  {{- end -}}
{{- else if eq .doc.metadata.name "koord-descheduler-config" -}}
  {{- with $values.descheduler.config -}}{{- $_ := set $data "koord-descheduler-config" (ternary . (toYaml .) (kindIs "string" .)) -}}{{- end -}}
{{- end -}}
{{- end -}}
