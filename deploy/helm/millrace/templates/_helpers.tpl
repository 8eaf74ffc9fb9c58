{{- define "millrace.labels" -}}
app.kubernetes.io/name: {{ .Release.Name }}
{{- end }}

{{- define "millrace.check" -}}
{{- if not (has .Values.device (list "cpu" "cuda")) }}{{ fail (printf "device: got %q, expected cpu or cuda" .Values.device) }}{{ end }}
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
limits: {memory: 32Gi, nvidia.com/gpu: "1"}
{{- else -}}
requests: {cpu: "4", memory: 4Gi}
limits: {cpu: "4", memory: 4Gi}
{{- end }}
{{- end }}
