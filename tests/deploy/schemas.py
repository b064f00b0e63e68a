"""Schemas of what no package describes: KEDA's two kinds, kustomize, Railway, Render, RunPod, Vast.

Written by hand from the fields that the platforms document. Unknown fields fail.
"""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 0}
DURATION = {"type": "string", "pattern": r"^\d+(ms|s|m|h)$"}


def closed(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """Return the schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def listed(item: dict[str, Any], least: int = 1) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": least}


def resource(version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = closed({"name": TEXT}, namespace=TEXT, labels={"type": "object"})
    head = {"apiVersion": {"const": version}, "kind": {"const": kind}}
    return closed({**head, "metadata": metadata, "spec": spec})


PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
TARGET_VALUE = closed({"targetValue": {"type": "integer", "minimum": 1}})
INTERCEPTOR_ROUTE = resource(
    "http.keda.sh/v1beta1",
    "InterceptorRoute",
    closed(
        {
            "target": closed({"service": TEXT, "port": PORT}),
            "scalingMetric": closed({}, concurrency=TARGET_VALUE, requestRate=TARGET_VALUE),
        },
        rules=listed(closed({"hosts": {**listed(TEXT), "uniqueItems": True}})),
        timeouts=closed({}, readiness=DURATION, request=DURATION, responseHeader=DURATION),
    ),
)
TRIGGER = closed(
    {
        "type": {"const": "external-push"},
        "metadata": closed({"scalerAddress": TEXT, "interceptorRoute": TEXT}),
    }
)
SCALED_OBJECT = resource(
    "keda.sh/v1alpha1",
    "ScaledObject",
    closed(
        {"scaleTargetRef": closed({"name": TEXT}), "triggers": listed(TRIGGER)},
        minReplicaCount=COUNT,
        maxReplicaCount={"type": "integer", "minimum": 1},
        cooldownPeriod=COUNT,
        initialCooldownPeriod=COUNT,
    ),
)
KUSTOMIZATION = closed(
    {
        "apiVersion": {"const": "kustomize.config.k8s.io/v1beta1"},
        "kind": {"const": "Kustomization"},
        "resources": listed(TEXT),
    },
    namespace=TEXT,
    patches=listed(closed({"path": TEXT})),
    configMapGenerator=listed(closed({"name": TEXT, "files": listed(TEXT)})),
    generatorOptions=closed({"disableNameSuffixHash": {"type": "boolean"}}),
)
POD_MONITOR = resource(
    "monitoring.coreos.com/v1",
    "PodMonitor",
    closed(
        {
            "selector": closed({"matchLabels": {"type": "object", "minProperties": 1}}),
            "podMetricsEndpoints": listed(closed({"port": TEXT}, path=TEXT, interval=DURATION)),
        }
    ),
)
HTTP_ROUTE = resource(
    "gateway.networking.k8s.io/v1",
    "HTTPRoute",
    closed(
        {
            "parentRefs": listed(closed({"name": TEXT}, namespace=TEXT)),
            "hostnames": listed(TEXT),
            "rules": listed(
                closed(
                    {
                        "backendRefs": listed(
                            {
                                "oneOf": [
                                    closed({"name": TEXT, "port": PORT}),
                                    closed(
                                        {
                                            "group": {"const": "inference.networking.k8s.io"},
                                            "kind": {"const": "InferencePool"},
                                            "name": TEXT,
                                        }
                                    ),
                                ]
                            }
                        )
                    }
                )
            ),
        }
    ),
)
INFERENCE_POOL = resource(
    "inference.networking.k8s.io/v1",
    "InferencePool",
    closed(
        {
            "selector": closed({"matchLabels": {"type": "object", "minProperties": 1}}),
            "targetPorts": {**listed(closed({"number": PORT})), "maxItems": 8},
            "endpointPickerRef": closed(
                {"name": TEXT, "port": closed({"number": PORT})},
                group={"type": "string"},
                kind=TEXT,
                failureMode={"enum": ["FailOpen", "FailClose"]},
            ),
        }
    ),
)
RAY_TEMPLATE = closed({"metadata": closed({"labels": {"type": "object"}}), "spec": {}})
"""The pod's spec is held against Kubernetes' own schema by the test."""
RAY_PARAMS = {"type": "object", "additionalProperties": {"type": "string"}}
RAY_SERVICE = resource(
    "ray.io/v1",
    "RayService",
    closed(
        {
            "serveConfigV2": TEXT,
            "rayClusterConfig": closed(
                {
                    "headGroupSpec": closed(
                        {"rayStartParams": RAY_PARAMS, "template": RAY_TEMPLATE}
                    ),
                    "workerGroupSpecs": listed(
                        closed(
                            {
                                "groupName": TEXT,
                                "rayStartParams": RAY_PARAMS,
                                "template": RAY_TEMPLATE,
                            },
                            replicas=COUNT,
                            minReplicas=COUNT,
                            maxReplicas=COUNT,
                        )
                    ),
                },
                rayVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
                enableInTreeAutoscaling={"type": "boolean"},
                autoscalerOptions=closed({}, idleTimeoutSeconds=COUNT),
            ),
        },
        serviceUnhealthySecondThreshold=COUNT,
        deploymentUnhealthySecondThreshold=COUNT,
    ),
)
RAILWAY = closed(
    {
        "$schema": {"const": "https://railway.com/railway.schema.json"},
        "build": closed({"builder": {"const": "DOCKERFILE"}, "dockerfilePath": TEXT}),
        "deploy": closed(
            {"healthcheckPath": {"type": "string", "pattern": "^/"}},
            healthcheckTimeout={"type": "integer", "minimum": 1},
            numReplicas={"type": "integer", "minimum": 1},
            sleepApplication={"type": "boolean"},
            drainingSeconds=COUNT,
            restartPolicyType={"enum": ["ON_FAILURE", "ALWAYS", "NEVER"]},
            restartPolicyMaxRetries=COUNT,
        ),
    }
)
RENDER_ENV = {
    "oneOf": [
        closed({"key": TEXT, "value": {"type": "string"}}),
        closed({"key": TEXT, "sync": {"const": False}}),
    ]
}
RENDER_SCALING = closed(
    {
        "minInstances": {"type": "integer", "minimum": 1},
        "maxInstances": {"type": "integer", "minimum": 1},
        "targetCPUPercent": {"type": "integer", "minimum": 1, "maximum": 90},
    }
)
RENDER_CREDENTIALS = closed({"fromRegistryCreds": closed({"name": TEXT})})
RENDER = closed(
    {
        "services": listed(
            closed(
                {
                    "type": {"enum": ["web", "pserv"]},
                    "name": TEXT,
                    "runtime": {"const": "image"},
                    "image": closed({"url": TEXT}, creds=RENDER_CREDENTIALS),
                    "plan": TEXT,
                },
                region=TEXT,
                numInstances={"type": "integer", "minimum": 1},
                scaling=RENDER_SCALING,
                healthCheckPath={"type": "string", "pattern": "^/"},
                maxShutdownDelaySeconds={"type": "integer", "minimum": 1, "maximum": 300},
                envVars=listed(RENDER_ENV),
            )
        )
    }
)
ENVIRONMENT = {"type": "object", "additionalProperties": {"type": "string"}}
RUNPOD_ENDPOINT = closed(
    {
        "name": TEXT,
        "type": {"enum": ["QUEUE", "LOAD_BALANCER"]},
        "scaling": {
            "oneOf": [
                closed({"type": {"const": "QUEUE_DELAY"}, "queueDelay": COUNT}),
                closed({"type": {"const": "REQUEST_COUNT"}, "requestCount": COUNT}),
            ]
        },
        "image": TEXT,
    },
    args={"type": "string"},
    env=ENVIRONMENT,
    disk={"type": "integer", "minimum": 1},
    ports=listed({"type": "string", "pattern": r"^\d+/(http|tcp)$"}),
    registry=TEXT,
    gpu=closed({"pools": listed(TEXT)}, count={"type": "integer", "minimum": 1}),
    workers=closed({}, min=COUNT, max=COUNT, idleTimeout={"type": "integer", "minimum": 1}),
    timeout=COUNT,
    flashboot={"enum": ["OFF", "FLASHBOOT"]},
    networkVolumes=listed(TEXT),
    dataCenterIds=listed(TEXT),
)
RUNPOD_TEMPLATE = closed(
    {"name": TEXT, "imageName": TEXT, "isServerless": {"const": True}},
    containerDiskInGb=COUNT,
    env=ENVIRONMENT,
    ports={"type": "array"},
    containerRegistryAuthId=TEXT,
)
KEY_VALUES = listed(closed({"key": TEXT, "value": {"type": "string"}}), 0)
RUNPOD_HUB = closed(
    {
        "title": TEXT,
        "description": TEXT,
        "type": {"const": "serverless"},
        "category": TEXT,
        "config": closed(
            {"runsOn": {"enum": ["GPU", "CPU"]}, "containerDiskInGb": COUNT, "gpuIds": TEXT},
            endpointType={"enum": ["LB", "QB"]},
            gpuCount=COUNT,
            env=KEY_VALUES,
        ),
    }
)
RUNPOD_TESTS = closed(
    {
        "tests": listed(closed({"name": TEXT, "input": {"type": "object"}, "timeout": COUNT})),
        "config": closed({"gpuTypeId": TEXT, "gpuCount": COUNT, "env": KEY_VALUES}),
    }
)
VAST_TEMPLATE = closed(
    {"name": TEXT, "image": TEXT, "env": {"type": "string"}, "runtype": {"const": "args"}},
    args_str={"type": "string"},
    recommended_disk_space=COUNT,
    extra_filters={"type": "object", "additionalProperties": {"type": "object"}},
    private={"type": "boolean"},
)
RECORD = closed(
    {
        "target": TEXT,
        "form": {"type": "string"},
        "name": TEXT,
        "details": {"type": "object", "additionalProperties": TEXT},
    }
)
BY_PATH = {
    "zse-deploy.json": RECORD,
    "railway.json": RAILWAY,
    "render.yaml": RENDER,
    "endpoint.json": RUNPOD_ENDPOINT,
    "template.json": RUNPOD_TEMPLATE,
    ".runpod/hub.json": RUNPOD_HUB,
    ".runpod/tests.json": RUNPOD_TESTS,
}
"""Path of a rendered file -> schema; Vast's template shares a name with RunPod's."""
BY_KIND = {
    "InterceptorRoute": INTERCEPTOR_ROUTE,
    "ScaledObject": SCALED_OBJECT,
    "Kustomization": KUSTOMIZATION,
    "PodMonitor": POD_MONITOR,
    "HTTPRoute": HTTP_ROUTE,
    "InferencePool": INFERENCE_POOL,
    "RayService": RAY_SERVICE,
}
