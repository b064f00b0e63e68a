"""Write infra/helm/zse, the chart; --check only compares.

It is made of the templates of `zse deploy kubernetes`, with Go's expressions where the command puts
values. Of Go's templates and Sprig only what tests/support/go_templates.py reads is used.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import helm_values  # noqa: E402

import zse  # noqa: E402

TEMPLATES = ROOT / "zse" / "deploy" / "templates" / "kubernetes"
CHART = ROOT / "infra" / "helm" / "zse"
MADE = "# Made by scripts/helm.py of the templates of `zse deploy kubernetes`.\n"
AUTO, GPU = ".Values.autoscaling.enabled", ".Values.gpu.enabled"

FILES: dict[str, tuple[str, str]] = {
    "deployment.yaml": ("base", ""),
    "service.yaml": ("base", ""),
    "disruption.yaml": ("base", ""),
    "account.yaml": ("base", ".Values.serviceAccount.annotations"),
    "monitor.yaml": ("base", 'eq .Values.scrape "pod-monitor"'),
    "route.yaml": ("scale-to-zero", AUTO),
    "scaledobject.yaml": ("scale-to-zero", AUTO),
    "ingress.yaml": ("outside", ".Values.ingress.className"),
    "interceptor.yaml": ("outside", f"and .Values.ingress.className {AUTO}"),
    "gatewayroute.yaml": ("outside", f"and .Values.gateway.name (not {AUTO})"),
}
"""Name -> its folder there, and when it is made; empty is always."""

NAME = "{{ .Release.Name | quote }}"
_BACKEND = f'printf "%s%s" .Release.Name (ternary "-interceptor" "" {AUTO}) | quote'
INLINE = {
    "name": NAME,
    "account": "{{ .Values.serviceAccount.name | default .Release.Name | quote }}",
    "account_annotations": "{{ toJson .Values.serviceAccount.annotations }}",
    "strategy": f'{{"type": {{{{ ternary "Recreate" "RollingUpdate" {GPU} | quote }}}}}}',
    "progress_seconds": "{{ add .Values.probes.startupSeconds 300 }}",
    "startup_seconds": "{{ int .Values.probes.startupSeconds }}",
    "readiness_timeout": '{{ printf "%ds" (int .Values.probes.startupSeconds) | quote }}',
    "grace_seconds": "{{ add .Values.drain.seconds .Values.drain.pauseSeconds 10 }}",
    "image": '{{ required "image is not set: --set image=NAME:TAG" .Values.image | quote }}',
    "pull_policy": "{{ .Values.pullPolicy | quote }}",
    "port": "{{ int .Values.port }}",
    "service_type": "{{ .Values.serviceType | quote }}",
    "max_unavailable": "{{ int .Values.maxUnavailable }}",
    "min_replicas": "{{ int .Values.autoscaling.min }}",
    "max_replicas": "{{ int .Values.autoscaling.max }}",
    "idle_seconds": "{{ int .Values.autoscaling.idleSeconds }}",
    "concurrency": "{{ int .Values.autoscaling.concurrency }}",
    "ingress_class": "{{ .Values.ingress.className | quote }}",
    "host": '{{ required "host is not set: --set host=NAME" .Values.host | quote }}',
    "backend": f"{{{{ {_BACKEND} }}}}",
    "backend_port": f"{{{{ ternary 8080 80 {AUTO} }}}}",
    "interceptor": '"keda-add-ons-http-interceptor-proxy.keda.svc.cluster.local"',
}
"""Placeholder -> what stands for it."""

OPTIONAL = {
    "replicas": (f"not {AUTO}", "{{ int .Values.replicas }}"),
    "service_account": (
        "or .Values.serviceAccount.name .Values.serviceAccount.annotations",
        INLINE["account"],
    ),
    "runtime_class": (".Values.runtimeClass", "{{ .Values.runtimeClass | quote }}"),
    "pull_secrets": (".Values.pullSecret", '[{"name": {{ .Values.pullSecret | quote }}}]'),
    "tolerations": (
        GPU,
        '[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]',
    ),
    "lifecycle": (
        ".Values.drain.pauseSeconds",
        '{"preStop": {"sleep": {"seconds": {{ int .Values.drain.pauseSeconds }}}}}',
    ),
    "tls": (
        ".Values.ingress.tlsSecret",
        '[{"hosts": [{{ .Values.host | quote }}],'
        ' "secretName": {{ .Values.ingress.tlsSecret | quote }}}]',
    ),
}
"""Placeholder -> when its line is there, and what stands for it."""


def _disk(indent: str) -> str:
    return f"""{{{{- with .Values.resources.disk }}}}
{indent}ephemeral-storage: {{{{ . | quote }}}}
{{{{- end }}}}"""


_MEMORY = "{{ .Values.resources.memory | default (ternary %s) | quote }}"
BLOCKS = {
    "pod_labels": f"""
  app.kubernetes.io/name: {NAME}
{{{{- range $key, $value := .Values.podLabels }}}}
  {{{{ $key | quote }}}}: {{{{ $value | quote }}}}
{{{{- end }}}}""",
    "pod_annotations": """
{{- if eq .Values.scrape "annotations" }}
  prometheus.io/scrape: "true"
  prometheus.io/path: /metrics
  prometheus.io/port: {{ int .Values.port | toString | quote }}
{{- end }}
{{- range $key, $value := .Values.podAnnotations }}
  {{ $key | quote }}: {{ $value | quote }}
{{- end }}""",
    "env": """
  - name: ZSE_HOST
    value: "0.0.0.0"
  - name: ZSE_CACHE_DIR
    value: /tmp/zse
  - name: ZSE_DRAIN_SECONDS
    value: {{ max 1 (sub .Values.drain.seconds 5) | toString | quote }}
  - name: PORT
    value: {{ int .Values.port | toString | quote }}
{{- if .Values.keys.secret }}
  - name: ZSE_API_KEYS
    valueFrom:
      secretKeyRef:
        name: {{ .Values.keys.secret | quote }}
        key: {{ .Values.keys.key | quote }}
{{- else }}
  - name: ZSE_PUBLIC
    value: "1"
{{- end }}
{{- with .Values.model }}
  - name: ZSE_MODEL
    value: {{ . | quote }}
{{- end }}
{{- range $name, $value := .Values.env }}
  - name: {{ $name | quote }}
    value: {{ $value | quote }}
{{- end }}
{{- range $index, $use := .Values.secrets }}
  - name: {{ $use.variable | quote }}
    valueFrom:
      secretKeyRef:
        name: {{ $use.secret | quote }}
        key: {{ $use.key | default $use.variable | quote }}
{{- end }}""",
    "resources": f"""
  requests:
    cpu: {{{{ .Values.resources.cpu | default (ternary "2" "4" {GPU}) | quote }}}}
    memory: {_MEMORY % f'"2Gi" "5120Mi" {GPU}'}
{_disk("    ")}
  limits:
    memory: {_MEMORY % f'"8Gi" "5120Mi" {GPU}'}
{_disk("    ")}
{{{{- if {GPU} }}}}
    nvidia.com/gpu: 1
{{{{- end }}}}""",
    "affinity": f"""
{{{{- if {GPU} }}}}
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
          {{{{- if .Values.gpu.product }}}}
            - key: nvidia.com/gpu.product
              operator: In
              values: [{{{{ .Values.gpu.product | quote }}}}]
          {{{{- else }}}}
            - key: nvidia.com/gpu.compute.major
              operator: Gt
              values: ["7"]
            - key: nvidia.com/gpu.memory
              operator: Gt
              values: [{{{{ int .Values.gpu.memoryMiB | toString | quote }}}}]
          {{{{- end }}}}
{{{{- end }}}}""",
    "mounts": """
  - name: tmp
    mountPath: /tmp
{{- if .Values.volume }}
  - name: models
    mountPath: /models
    readOnly: true
{{- end }}""",
    "volumes": """
  - name: tmp
{{- if .Values.resources.disk }}
    emptyDir:
      sizeLimit: {{ .Values.resources.disk | quote }}
{{- else }}
    emptyDir: {}
{{- end }}
{{- if .Values.volume }}
  - name: models
    persistentVolumeClaim:
      claimName: {{ .Values.volume | quote }}
      readOnly: true
{{- end }}""",
    "hosts": """
{{- with .Values.host }}
  - {{ . | quote }}
{{- end }}
  - {{ .Release.Name | quote }}
  - {{ printf "%s.%s" .Release.Name .Release.Namespace | quote }}
  - {{ printf "%s.%s.svc" .Release.Name .Release.Namespace | quote }}
  - {{ printf "%s.%s.svc.cluster.local" .Release.Name .Release.Namespace | quote }}""",
    "gateways": """
  - name: {{ .Values.gateway.name | quote }}
{{- with .Values.gateway.namespace }}
    namespace: {{ . | quote }}
{{- end }}""",
}
"""Placeholder -> the lines below its key, from that key's column."""

GUARD = f"""{{{{- if and (not .Values.keys.secret) (not .Values.public) }}}}
{{{{- if or .Values.ingress.className .Values.gateway.name (ne .Values.serviceType "ClusterIP") }}}}
{{{{- fail "whoever reaches it could ask: --set keys.secret=NAME, or public=true" }}}}
{{{{- end }}}}
{{{{- end }}}}
{{{{- if and .Values.gateway.name {AUTO} }}}}
{{{{- fail "a Gateway's route cannot wake a pod: use an ingress, or do not sleep" }}}}
{{{{- end }}}}
"""
"""What the chart refuses, as the command does."""

NOTES = """zse runs as Deployment and Service {{ .Release.Name }}.

  kubectl rollout status deployment/{{ .Release.Name }} --namespace {{ .Release.Namespace }}
  kubectl port-forward service/{{ .Release.Name }} 8000:80 --namespace {{ .Release.Namespace }}
  curl http://127.0.0.1:8000/v1/models
"""


def template_of(text: str) -> str:
    """Put Go's expressions where a template of the command has ``@{name}``."""
    return "\n".join(_line(line) for line in text.splitlines()) + "\n"


def _line(line: str) -> str:
    line = line.replace("managed-by: zse", "managed-by: {{ .Release.Service | quote }}")
    names = re.findall(r"@\{(\w+)\}", line)
    if not names:
        return line
    name = names[0]
    indent = " " * (len(line) - len(line.lstrip()))
    if name in BLOCKS:
        rows = BLOCKS[name].lstrip("\n").splitlines()
        rows = [row if row.startswith("{{-") else indent + row for row in rows]
        return "\n".join([line.replace(f" @{{{name}}}", ""), *rows])
    if name in OPTIONAL:
        condition, expression = OPTIONAL[name]
        written = line.replace(f"@{{{name}}}", expression)
        return f"{{{{- if {condition} }}}}\n{written}\n{{{{- end }}}}"
    return line.replace(f"@{{{name}}}", INLINE[name])


def files() -> dict[str, str]:
    """Return the chart's files by their paths in it."""
    chart = {
        "apiVersion": "v2",
        "name": "zse",
        "description": "An OpenAI endpoint that serves one .zse file and sleeps when nobody asks",
        "type": "application",
        "version": zse.__version__,
        "appVersion": zse.__version__,
        "kubeVersion": ">=1.30.0-0",
    }
    found = {
        "Chart.yaml": MADE + "".join(f"{key}: {json.dumps(v)}\n" for key, v in chart.items()),
        "values.yaml": MADE + helm_values.as_yaml(),
        "values.schema.json": json.dumps(helm_values.schema(), indent=2) + "\n",
        "templates/NOTES.txt": NOTES,
    }
    for name, (folder, condition) in FILES.items():
        text = template_of((TEMPLATES / folder / f"{name}.tmpl").read_text())
        if name == "deployment.yaml":
            text = GUARD + text
        if condition:
            text = f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"
        found[f"templates/{name}"] = MADE + text
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    made: dict[str, Any] = files()
    there = {str(p.relative_to(CHART)): p.read_text() for p in CHART.rglob("*") if p.is_file()}
    if options.check:
        if there != made:
            print("error: infra/helm/zse is stale; run scripts/helm.py", file=sys.stderr)
        return int(there != made)
    for name in there.keys() - made.keys():
        (CHART / name).unlink()
    for name, text in made.items():
        (CHART / name).parent.mkdir(parents=True, exist_ok=True)
        (CHART / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
