{{- define "gpu-labeller.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "gpu-labeller.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "gpu-labeller.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "gpu-labeller.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "gpu-labeller.selector" -}}
app.kubernetes.io/name: {{ include "gpu-labeller.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "gpu-labeller.labels" -}}
{{ include "gpu-labeller.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "gpu-labeller.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "gpu-labeller.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "gpu-labeller.fullname" .) }}
{{- else }}
{{- .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{- define "gpu-labeller.cleanupName" -}}
{{ include "gpu-labeller.fullname" . }}-cleanup
{{- end }}

{{/* Whether the agent talks to the API server: "true" or empty. */}}
{{- define "gpu-labeller.usesAPI" -}}
{{- if or (has "node" .Values.sinks) (has "node-feature" .Values.sinks) }}true{{ end }}
{{- end }}

{{/* Whether the cluster knows ValidatingAdmissionPolicy v1: "true" or empty. */}}
{{- define "gpu-labeller.hasPolicies" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}true{{ end }}
{{- end }}

{{/* Whether the cluster knows FlowSchema v1: "true" or empty. */}}
{{- define "gpu-labeller.hasFlowControl" -}}
{{- if semverCompare ">=1.29.0-0" .Capabilities.KubeVersion.Version }}true{{ end }}
{{- end }}

{{/* Refuses values that would be passed over, or that do not go together. */}}
{{- define "gpu-labeller.check" -}}
{{- if not .Values.sinks }}
{{- fail "sinks is empty: name where labels are published, one or more of node, node-feature, feature-file" }}
{{- end }}
{{- if and .Values.featureFile.expiry (not (has "feature-file" .Values.sinks)) }}
{{- fail "featureFile.expiry is about sink feature-file, which is not among sinks" }}
{{- end }}
{{- if and .Values.networkPolicy.from (not .Values.networkPolicy.enabled) }}
{{- fail "networkPolicy.from is of the NetworkPolicy that networkPolicy.enabled makes: set that to true" }}
{{- end }}
{{- with .Values.config }}
{{- if and (not .configMap) (or (and .key (ne .key "config.yaml")) .intelNamesKey) }}
{{- fail "config.key and config.intelNamesKey are keys of a ConfigMap: name it with config.configMap" }}
{{- end }}
{{- if and .configMap (not (or .key .intelNamesKey)) }}
{{- fail "config.configMap is mounted for nothing: name its key with config.key or config.intelNamesKey" }}
{{- end }}
{{- end }}
{{- range .Values.extraArgs }}
{{- $flag := regexFind "^--[a-z-]+" . }}
{{- if eq $flag "--listen" }}
{{- fail "extraArgs: --listen is not to be changed: the probes and the PodMonitor ask port 8080" }}
{{- else if eq $flag "--sink" }}
{{- fail "extraArgs: --sink is the value sinks, which the agent's rights follow" }}
{{- else if eq $flag "--taint" }}
{{- fail "extraArgs: --taint is the value taint.enabled, with taint.key, taint.value and taint.effect, which the admission policy follows" }}
{{- end }}
{{- end }}
{{- if regexMatch "^([^/]*[.])?kubernetes[.]io/" .Values.taint.key }}
{{- fail (printf "taint.key %s is Kubernetes' own: name a key under another prefix, such as nvidia.com/gpu" .Values.taint.key) }}
{{- end }}
{{- if and .Values.cleanup.enabled (ge (int .Values.cleanup.timeoutSeconds) 300) }}
{{- fail (printf "cleanup.timeoutSeconds is %d: the clean-up must end before Helm waits no longer (helm uninstall --timeout, 5m by default) and takes its rights away, so give it less than 300" (int .Values.cleanup.timeoutSeconds)) }}
{{- end }}
{{- if and .Values.policy.create (include "gpu-labeller.usesAPI" .) (not (include "gpu-labeller.hasPolicies" .)) }}
{{- fail (printf "policy.create needs Kubernetes 1.30 (ValidatingAdmissionPolicy), and this is %s: set policy.create=false, with which every agent's token can change every Node of the cluster; or sinks={feature-file}, with which the agents have no rights" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and .Values.flowSchema.enabled (not (include "gpu-labeller.hasFlowControl" .)) }}
{{- fail (printf "flowSchema.enabled needs Kubernetes 1.29 (flowcontrol.apiserver.k8s.io/v1), and this is %s: set flowSchema.enabled=false, with which the agents share the priority level workload-low with other ServiceAccounts" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- end }}

{{/* What containers of every kind may not do. */}}
{{- define "gpu-labeller.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/*
Marks an object as part of the clean-up after an uninstall. When the Job fails, or
takes longer than Helm waits, Helm deletes the hooks before it, and with them its
rights: so the Job goes too (hook-failed), after Helm has printed its log.
*/}}
{{- define "gpu-labeller.hook" -}}
helm.sh/hook: post-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded{{ if eq . "0" }},hook-failed
helm.sh/hook-output-log-policy: hook-failed{{ end }}
{{- end }}

{{/*
The labels that are ours, as a regular expression (RE2). Under nvidia.com/ there
are those of others too: gpu.deploy.*, gpu.present and mig.config are the GPU
Operator's or its users'.
*/}}
{{- define "gpu-labeller.ownLabels" -}}
^(nvidia[.]com/(cuda[.](driver|runtime)(-version)?[.][a-z]+|gfd[.]timestamp|gpu[.](clique|compute[.](major|minor)|count|engines[.][a-z]+|family|machine|memory|mode|multiprocessors|product|replicas|sharing-strategy|slices[.](ci|gi))|mig[.](capable|strategy)|mig-[^/]+[.](count|engines[.][a-z]+|memory|multiprocessors|product|replicas|sharing-strategy|slices[.](ci|gi))|mps[.]capable|vgpu[.](present|host-driver-(branch|version)))|gpu[.]feature[.]node[.]kubernetes[.]io/.+|feature[.]node[.]kubernetes[.]io/pci-.+|(beta[.])?amd[.]com/gpu[.].+|gpu[.]intel[.]com/.+|intel[.]feature[.]node[.]kubernetes[.]io/gpu)$
{{- end }}

{{/* Rules of a policy: all of a Node but its labels and its spec stays as it is. */}}
{{- define "gpu-labeller.onlyLabels" -}}
- expression: request.?subResource.orValue("") == ""
  message: a subresource may not be changed
  reason: Forbidden
- expression: object.metadata.?annotations.orValue({}) == oldObject.metadata.?annotations.orValue({})
  message: annotations may not be changed
  reason: Forbidden
- expression: object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([])
  message: finalizers may not be changed
  reason: Forbidden
- expression: object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([])
  message: owner references may not be changed
  reason: Forbidden
{{- end }}

{{/* The taint that the values describe, as --taint wants it. */}}
{{- define "gpu-labeller.taintText" -}}
{{- .Values.taint.key }}{{ with .Values.taint.value }}={{ . }}{{ end }}:{{ .Values.taint.effect }}
{{- end }}

{{/* The taint that the agent keeps; empty for none. */}}
{{- define "gpu-labeller.taint" -}}
{{- if .Values.taint.enabled }}
{{- if not (has "node" .Values.sinks) }}
{{- fail "taint.enabled needs sink node: NFD sets taints by its own NodeFeatureRules" }}
{{- end }}
{{- include "gpu-labeller.taintText" . }}
{{- end }}
{{- end }}

{{/* Variables of a policy that allows the taint: the rest of the spec that changes, and other taints. */}}
{{- define "gpu-labeller.taintVariables" -}}
- name: oldSpec
  expression: dyn(oldObject).?spec.orValue({})
- name: newSpec
  expression: dyn(object).?spec.orValue({})
- name: otherSpec
  expression: >-
    variables.oldSpec.filter(k, k != "taints" && !(k in variables.newSpec)) +
    variables.newSpec.filter(k, k != "taints" && (!(k in variables.oldSpec) || variables.oldSpec[k] != variables.newSpec[k]))
- name: oldTaints
  expression: variables.oldSpec.?taints.orValue([])
- name: newTaints
  expression: variables.newSpec.?taints.orValue([])
{{- end }}

{{/* Rules of a policy: of the spec only the taint may change, and others stay in their order. */}}
{{- define "gpu-labeller.onlyTaint" -}}
{{- $other := printf "filter(t, t.key != %q || t.?value.orValue(\"\") != %q || t.effect != %q)" .Values.taint.key .Values.taint.value .Values.taint.effect -}}
- expression: variables.otherSpec.size() == 0
  messageExpression: '"the spec, but for a taint, may not be changed: " + variables.otherSpec.join(", ")'
  reason: Forbidden
- expression: >-
    variables.oldTaints.{{ $other }} ==
    variables.newTaints.{{ $other }}
  message: of taints, only {{ include "gpu-labeller.taintText" . }} may be changed
  reason: Forbidden
{{- end }}

{{/* Variables old, new and foreign: labels, and the keys that change and are not ours. */}}
{{- define "gpu-labeller.labelVariables" -}}
- name: old
  expression: oldObject.metadata.?labels.orValue({})
- name: new
  expression: object.metadata.?labels.orValue({})
- name: foreign
  expression: >-
    (variables.old.filter(k, !(k in variables.new)) +
    variables.new.filter(k, !(k in variables.old) || variables.old[k] != variables.new[k]))
    .filter(k, !k.matches('{{ include "gpu-labeller.ownLabels" . }}'))
{{- end }}
