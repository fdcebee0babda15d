{{/* The two service accounts: the only writers of the annotations that say which card a pod holds. */}}
{{- define "vcuda.agentUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:gpu-manager
{{- end }}
{{- define "vcuda.admissionUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:gpu-quota-admission
{{- end }}

{{- define "vcuda.evictorUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:gpu-manager-evictor
{{- end }}
{{/* "true" where agents mark pods, and the evictor evicts them; without admission, which watches all pods too, agents evict by themselves. */}}
{{- define "vcuda.evictor" -}}
{{- if and .Values.admission.enabled (or .Values.agent.evict .Values.agent.evictEvaders) }}true{{ end -}}
{{- end }}

{{/* Labels: (list $ component). */}}
{{- define "vcuda.labels" -}}
{{- $root := index . 0 -}}
{{ include "vcuda.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: gpu-manager
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{/* Of pods: a new chart with the same program does not start them anew. */}}
{{- define "vcuda.podLabels" -}}
{{- $root := index . 0 -}}
{{ include "vcuda.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
{{- $own := (index $root.Values (index . 1) | default dict).podLabels | default dict -}}
{{- with merge (dict) $own ($root.Values.podLabels | default dict) ($root.Values.commonLabels | default dict) }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- define "vcuda.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Values.nameOverride | default "gpu-manager" }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* An image: (list $ repositoryTagDigest). */}}
{{- define "vcuda.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* Of all accounts: clouds give rights of their own by them. */}}
{{- define "vcuda.accountAnnotations" -}}
{{- with (.Values.serviceAccount | default dict).annotations -}}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "vcuda.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* client-go and our own client find the API server by these two; the kubelet sets them to the Service's. */}}
{{- define "vcuda.apiServerEnv" -}}
{{- with .Values.apiServer.host -}}
- {name: KUBERNETES_SERVICE_HOST, value: {{ . | quote }}}
- {name: KUBERNETES_SERVICE_PORT, value: {{ $.Values.apiServer.port | toString | quote }}}
{{- end }}
{{- end }}

{{/* "true" where nothing but the agent itself opens the cards; empty otherwise. */}}
{{- define "vcuda.privileged" -}}
{{- if ne (toString .Values.agent.privileged) "" -}}
{{- if eq (toString .Values.agent.privileged) "true" }}true{{ end -}}
{{- else if and (eq .Values.cards.source "nvml") (has .Values.cards.injection (list "auto" "direct")) (not .Values.agent.runtimeClassName) -}}
true
{{- end }}
{{- end }}

{{/* Agents have what claims need. agent.leaveClaims, which an older chart had, keeps it with front plugin until the nodes are drained. */}}
{{- define "vcuda.claims" -}}
{{- if or (ne .Values.agent.front "plugin") .Values.agent.leaveClaims }}true{{ end -}}
{{- end }}

{{/* Refuses an upgrade that would leave pods behind: a card changes between extended resources and claims only on a node that is
     drained. The releases before this one handed cards over while the node ran, and may have some that are neither's. */}}
{{- define "vcuda.drained" -}}
{{- if .Capabilities.APIVersions.Has "resource.k8s.io/v1" }}
{{- $holders := dict }}
{{- range $claim := (lookup "resource.k8s.io/v1" "ResourceClaim" "" "").items }}
{{- range (dig "status" "allocation" "devices" "results" list $claim) }}
{{- if eq .driver "vcuda.tencent.com" }}
{{- $names := list }}
{{- range (dig "status" "reservedFor" list $claim) }}{{ $names = append $names (printf "pod %s/%s" $claim.metadata.namespace .name) }}{{ end }}
{{- $names = $names | default (list (printf "claim %s/%s" $claim.metadata.namespace $claim.metadata.name)) }}
{{- $_ := set $holders .pool (concat (get $holders .pool | default list) $names | uniq) }}
{{- end }}{{ end }}{{ end }}
{{- $leaves := and (eq .Values.agent.front "plugin") (not .Values.agent.leaveClaims) }}
{{- if and $leaves $holders }}
{{- $said := list }}
{{- range $node, $names := $holders }}{{ $said = append $said (printf "node %s: %s" $node (join ", " $names)) }}{{ end }}
{{- fail (printf "agent.front is plugin, and cards are still given by ResourceClaims (%s): drain these nodes, then upgrade" (join "; " $said)) }}
{{- end }}
{{- $agents := lookup "apps/v1" "DaemonSet" .Release.Namespace "gpu-manager-daemonset" | default dict | toJson }}
{{- if or (contains "--dra-cards=" $agents) (contains "--leave-claims" $agents) }}
{{- $devices := dict }}
{{- range (lookup "resource.k8s.io/v1" "ResourceSlice" "" "").items }}
{{- if eq .spec.driver "vcuda.tencent.com" }}{{ $_ := set $devices .spec.nodeName (len (.spec.devices | default list)) }}{{ end }}
{{- end }}
{{- range (lookup "v1" "Node" "" "").items }}
{{- if eq (dig "labels" "tencent.com/vcuda-front" "" .metadata) "split" }}
{{- $held := 0 }}
{{- range (dig "annotations" "tencent.com/vcuda-inventory" "{}" .metadata | fromJson).cards }}{{ if eq (.held | default "") "vcuda.tencent.com" }}{{ $held = add1 $held }}{{ end }}{{ end }}
{{- $between := sub $held (get $devices .metadata.name | default 0) }}
{{- if gt $between 0 }}
{{- $names := get $holders .metadata.name | default (list "no pod") }}
{{- fail (printf "node %s: %d cards are on their way between extended resources and claims, and this release hands none over (its claims are held by %s): wait until vcuda_card_front shows none as to-dra or to-plugin, or drain the node; then upgrade" .metadata.name $between (join ", " $names)) }}
{{- end }}{{ end }}{{ end }}{{ end }}{{ end }}
{{- end }}

{{- define "vcuda.simulated" -}}
{{- if hasPrefix "simulated:" .Values.cards.source }}true{{ end -}}
{{- end }}

{{/* Bytes of a memory unit, whatever form it is written in. */}}
{{- define "vcuda.unitBytes" -}}
{{- $text := toString .Values.terms.memoryUnit -}}
{{- /* A number in a file of values is a float64, which toString writes as 2.68435456e+08. */}}
{{- if kindIs "float64" .Values.terms.memoryUnit }}{{ $text = toString (int64 .Values.terms.memoryUnit) }}{{ end -}}
{{- $number := regexFind "^[0-9]+" $text | int64 -}}
{{- $suffix := regexReplaceAll "^[0-9]+" $text "" -}}
{{- $factors := dict "" 1 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "k" 1000 "M" 1000000 "G" 1000000000 -}}
{{- $bytes := mul $number (get $factors $suffix | int64) -}}
{{- if or (lt $bytes 1048576) (gt $bytes 1099511627776) }}{{ fail (printf "terms.memoryUnit is %s: use 1Mi to 1024Gi, such as 256Mi" $text) }}{{ end -}}
{{- $bytes -}}
{{- end }}

{{/* Bytes of the smallest share, which `helm test` takes; 0 where nothing less than a card is given. */}}
{{- define "vcuda.testBytes" -}}
{{- if lt (int .Values.terms.minimumCores) 100 }}{{ include "vcuda.unitBytes" . }}{{ else }}0{{ end -}}
{{- end }}

{{/* A memory unit for people. */}}
{{- define "vcuda.unitText" -}}
{{- $bytes := include "vcuda.unitBytes" . | int64 -}}
{{- if eq (mod $bytes 1073741824) 0 }}{{ div $bytes 1073741824 }} GiB
{{- else if eq (mod $bytes 1048576) 0 }}{{ div $bytes 1048576 }} MiB
{{- else if eq (mod $bytes 1024) 0 }}{{ div $bytes 1024 }} KiB
{{- else }}{{ $bytes }} B{{ end -}}
{{- end }}

{{/* The version of the cluster's kube-scheduler, without what vendors append. */}}
{{- define "vcuda.schedulerTag" -}}
{{- .Values.scheduler.sidecar.tag | default (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version) -}}
{{- end }}

{{- define "vcuda.schedulerImage" -}}
{{- with .Values.scheduler.sidecar -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ include "vcuda.schedulerTag" $ }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "vcuda.sidecar" -}}
{{- if and .Values.admission.enabled (eq .Values.scheduler.mode "sidecar") }}true{{ end -}}
{{- end }}
{{- define "vcuda.cluster" -}}
{{- if and .Values.admission.enabled (eq .Values.scheduler.mode "cluster") }}true{{ end -}}
{{- end }}

{{/* "true" where loopback is the node's, not the pod's: scheduler and extender then show each other a certificate that the pod makes. */}}
{{- define "vcuda.podCertificate" -}}
{{- if and (include "vcuda.sidecar" .) .Values.admission.hostNetwork }}true{{ end -}}
{{- end }}

{{/* "true" where the service makes its own certificate. */}}
{{- define "vcuda.selfSigned" -}}
{{- $given := .Values.certificates }}
{{- if and $given.secret $given.issuer }}{{ fail "certificates.issuer and certificates.secret are set: use one of them" }}{{ end }}
{{- if ne (empty $given.secret) (empty $given.caBundle) }}{{ fail "certificates.secret and certificates.caBundle belong together: API servers must know who signed the Secret's certificate" }}{{ end }}
{{- if not (or $given.issuer $given.secret) }}true{{ end -}}
{{- end }}
{{- define "vcuda.certificateSecret" -}}
{{- .Values.certificates.secret | default "gpu-quota-admission-certs" -}}
{{- end }}

{{/* Who asks the extender, in both ways of scheduling. */}}
{{- define "vcuda.extender" -}}
filterVerb: filter
prioritizeVerb: prioritize
bindVerb: bind
preemptVerb: preempt
weight: {{ int .Values.scheduler.weight }}
nodeCacheCapable: true
httpTimeout: 5s
ignorable: false
managedResources:
- {name: tencent.com/vcuda-core, ignoredByScheduler: false}
- {name: tencent.com/vcuda-memory, ignoredByScheduler: false}
{{- end }}

{{- define "vcuda.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* A webhook's common part: (list $ name path failurePolicy), and "counts" or "writes" for one that counts what it lets pass, or makes what it needs. */}}
{{- define "vcuda.webhook" }}
{{- $root := index . 0 }}
{{- $counts := and (gt (len .) 4) (ne (index (append . "") 4) "") }}
- name: {{ index . 1 }}
  admissionReviewVersions: [v1]
  clientConfig:
    {{- if $root.Values.webhook.url }}
    url: {{ trimSuffix "/" $root.Values.webhook.url }}{{ index . 2 }}
    {{- else }}
    service: {name: gpu-quota-admission, namespace: {{ $root.Release.Namespace }}, path: {{ index . 2 }}, port: 443}
    {{- end }}
    {{- with $root.Values.certificates.caBundle }}
    caBundle: {{ b64enc . }}
    {{- end }}
  failurePolicy: {{ index . 3 }}
  sideEffects: {{ ternary "NoneOnDryRun" "None" $counts }}
  timeoutSeconds: {{ $root.Values.webhook.timeoutSeconds }}
  {{- if gt (len .) 5 }}
  namespaceSelector:
    matchLabels: {kubernetes.io/metadata.name: {{ index . 5 }}}
  {{- else }}
  # Our own pods, and what the cluster needs to run at all, never wait for us.
  namespaceSelector:
    matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values: {{ concat (list "kube-system" $root.Release.Namespace) $root.Values.webhook.excludedNamespaces | uniq | toJson }}
  {{- end }}
{{- end }}
{{- define "vcuda.webhookMeta" }}
metadata:
  name: gpu-quota-admission
  labels:
    {{- include "vcuda.labels" (list . "admission") | nindent 4 }}
    {{- with .Values.webhook.labels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- if .Values.certificates.issuer }}
  annotations:
    cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/gpu-quota-admission-certs
  {{- end }}
{{- end }}
