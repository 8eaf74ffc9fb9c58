{{- define "millrace.labels" -}}
app.kubernetes.io/name: {{ .Release.Name }}
{{- end }}

{{- define "millrace.check" -}}
{{- if not (has .Values.device (list "cpu" "cuda")) }}{{ fail (printf "device: got %q, expected cpu or cuda" .Values.device) }}{{ end }}
{{- if or (lt (int .Values.gpus) 1) (gt (int .Values.gpus) 8) }}{{ fail (printf "gpus: got %v, expected 1 to 8" .Values.gpus) }}{{ end }}
{{- if and (gt (int .Values.gpus) 1) (ne .Values.device "cuda") }}{{ fail "gpus: more than one is for device cuda" }}{{ end }}
{{- if not (has .Values.cache.kind (list "pvc" "existing" "emptyDir")) }}{{ fail (printf "cache.kind: got %q, expected pvc, existing or emptyDir" .Values.cache.kind) }}{{ end }}
{{- if and (eq .Values.cache.kind "existing") (not .Values.cache.claim) }}{{ fail "cache.claim: expected the name of a claim, for cache.kind existing" }}{{ end }}
{{- if not (has .Values.autoscaling.kind (list "none" "hpa" "keda")) }}{{ fail (printf "autoscaling.kind: got %q, expected none, hpa or keda" .Values.autoscaling.kind) }}{{ end }}
{{- if not (has .Values.monitor.kind (list "none" "service" "pod")) }}{{ fail (printf "monitor.kind: got %q, expected none, service or pod" .Values.monitor.kind) }}{{ end }}
{{- range $name, $_ := .Values.settings }}
{{- if not (hasPrefix "MILLRACE_" $name) }}{{ fail (printf "settings: got %q, expected names that begin with MILLRACE_" $name) }}{{ end }}
{{- end }}
{{- end }}

{{- define "millrace.resources" -}}
{{- if .Values.resources }}
{{- toYaml .Values.resources }}
{{- else if eq .Values.device "cuda" -}}
requests: {cpu: "4", memory: 32Gi}
limits: {memory: 32Gi, nvidia.com/gpu: {{ .Values.gpus | quote }}}
{{- else -}}
requests: {cpu: "4", memory: 4Gi}
limits: {cpu: "4", memory: 4Gi}
{{- end }}
{{- end }}
