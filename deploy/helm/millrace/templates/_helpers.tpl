{{- define "millrace.labels" -}}
app.kubernetes.io/name: {{ .Release.Name }}
{{- end }}

{{- /* Fails for values that do not go together; values.schema.json has what each may be. */ -}}
{{- define "millrace.check" -}}
{{- if and (gt (int .Values.gpus) 1) (ne .Values.device "cuda") }}{{ fail "gpus: more than one is for device cuda" }}{{ end }}
{{- if and (eq .Values.cache.kind "existing") (not .Values.cache.claim) }}{{ fail "cache.claim: expected the name of a claim, for cache.kind existing" }}{{ end }}
{{- if and (ne .Values.tls.clientCertificates "none") (not .Values.tls.secret) }}{{ fail "tls.clientCertificates: expected tls.secret beside it" }}{{ end }}
{{- if and .Values.keys.secret .Values.inferencePool.enabled }}{{ fail "keys.secret: an InferencePool's endpoint picker sends no key; expected none beside inferencePool" }}{{ end }}
{{- $owned := dict "MILLRACE_DRAIN_TIMEOUT" "drainSeconds" "MILLRACE_HTTP_PORT" "the Service's port" "MILLRACE_GRPC_PORT" "the Service's port" "MILLRACE_METRICS_PORT" "the monitor's port" }}
{{- range $name, $_ := .Values.settings }}
{{- if hasKey $owned $name }}{{ fail (printf "settings: got %s, which pods and probes rely on; set %s" $name (get $owned $name)) }}{{ end }}
{{- end }}
{{- end }}

{{- define "millrace.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ printf "%s@%s" $image.repository $image.digest | quote }}
{{- else -}}
{{ printf "%s:%s" $image.repository ($image.tag | default .Values.device) | quote }}
{{- end }}
{{- end }}

{{- /* Writes a setting's value. Numbers of YAML files are floats here, whose own text would be 1e+06. */ -}}
{{- define "millrace.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ printf "%.0f" . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- /* Whether --metrics-host listens: for who has neither a key nor a certificate. */ -}}
{{- define "millrace.metricsPort" -}}
{{- if or .Values.keys.secret .Values.tls.secret }}metrics{{ else }}http{{ end }}
{{- end }}

{{- define "millrace.probePort" -}}
{{- if .Values.tls.secret }}metrics{{ else }}http{{ end }}
{{- end }}

{{- /* The container's variables, each once: the chart's own, settings over them, extraEnv over both. */ -}}
{{- define "millrace.env" -}}
{{- $values := dict "MILLRACE_HOST" "0.0.0.0" "MILLRACE_DRAIN_TIMEOUT" (printf "%vs" .Values.drainSeconds) "MILLRACE_LOG_FORMAT" "json" }}
{{- if eq .Values.device "cuda" }}
{{- $_ := set $values "MILLRACE_DEVICE" "cuda" }}
{{- $_ := set $values "MILLRACE_MODEL" (.Values.model | default "Qwen/Qwen3-8B") }}
{{- if not .Values.model }}{{ $_ := set $values "MILLRACE_QUANTIZATION" "fp8" }}{{ end }}
{{- if gt (int .Values.gpus) 1 }}{{ $_ := set $values "MILLRACE_TENSOR_PARALLEL_SIZE" .Values.gpus }}{{ end }}
{{- else }}
{{- $_ := set $values "MILLRACE_MODEL" (.Values.model | default "bartowski/SmolLM2-135M-Instruct-GGUF:Q4_0") }}
{{- if not .Values.resources }}{{ $_ := set $values "MILLRACE_KV_CACHE_MEMORY" "1GiB" }}{{ end }}
{{- end }}
{{- if .Values.keys.secret }}{{ $_ := set $values "MILLRACE_KEYS" "/etc/millrace/keys/keys.json" }}{{ end }}
{{- with .Values.tls }}
{{- if .secret }}
{{- $_ := set $values "MILLRACE_SSL_CERTFILE" "/etc/millrace/tls/tls.crt" }}
{{- $_ := set $values "MILLRACE_SSL_KEYFILE" "/etc/millrace/tls/tls.key" }}
{{- if ne .clientCertificates "none" }}
{{- $_ := set $values "MILLRACE_SSL_CA_CERTS" "/etc/millrace/tls/ca.crt" }}
{{- $_ := set $values "MILLRACE_SSL_CERT_REQS" (ternary "1" "2" (eq .clientCertificates "optional")) }}
{{- end }}
{{- end }}
{{- end }}
{{- if eq (include "millrace.metricsPort" .) "metrics" }}{{ $_ := set $values "MILLRACE_METRICS_HOST" "0.0.0.0" }}{{ end }}
{{- if .Values.inferencePool.enabled }}
{{- $_ := set $values "MILLRACE_INSECURE" "true" }}
{{- $_ := set $values "MILLRACE_ALLOWED_HOSTS" .Values.inferencePool.allowedHosts }}
{{- end }}
{{- range $name, $value := .Values.settings }}{{ $_ := set $values $name $value }}{{ end }}
{{- $secrets := dict "HF_TOKEN" (dict "name" .Values.secret "key" "hf-token" "optional" true) }}
{{- if not (or .Values.inferencePool.enabled .Values.keys.secret (hasKey $values "MILLRACE_API_KEY")) }}
{{- $_ := set $secrets "MILLRACE_API_KEY" (dict "name" .Values.secret "key" "api-key") }}
{{- end }}
{{- range .Values.extraEnv }}
{{- $_ := unset $values .name }}
{{- $_ := unset $secrets .name }}
{{- end }}
{{- range $name, $value := $values }}
- {name: {{ $name }}, value: {{ include "millrace.text" $value | quote }}}
{{- end }}
{{- range $name, $reference := $secrets }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef: {{ toJson $reference }}
{{- end }}
{{- range .Values.extraEnv }}
- {{ toJson . }}
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
