"""A JSON schema of RayService, for the fields that deploy/kuberay/ uses and their neighbours; all others are errors.

Our own, by the field reference of KubeRay 1.6.2 (`ray.io/v1`) and the rules its operator checks beyond it; no package
ships the CRD. Pod templates are left to Kubernetes' own schemas.
"""

from typing import Any

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_TEXTS_BY_NAME = {"type": "object", "additionalProperties": _TEXT}
_POD_TEMPLATE = {"type": "object"}
_ENV_SOURCE = {"type": "object"}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_REDIS_CREDENTIAL = _object({"value": _TEXT, "valueFrom": _ENV_SOURCE})

_GROUP = {
    "labels": _TEXTS_BY_NAME,
    "resources": _TEXTS_BY_NAME,
    # The operator refuses both here: `labels` has a field of its own, the password one below gcsFaultToleranceOptions.
    "rayStartParams": {**_TEXTS_BY_NAME, "propertyNames": {"not": {"enum": ["labels", "redis-password"]}}},
    "template": _POD_TEMPLATE,
}

_HEAD = _object(
    {
        **_GROUP,
        "enableIngress": {"type": "boolean"},
        "serviceType": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    },
    "rayStartParams",
    "template",
)

_WORKERS = _object(
    {
        **_GROUP,
        "groupName": _TEXT,
        "replicas": _COUNT,
        "minReplicas": _COUNT,
        "maxReplicas": _COUNT,
        "numOfHosts": _COUNT,
        "idleTimeoutSeconds": _COUNT,
    },
    "groupName",
    "minReplicas",
    "maxReplicas",
    "rayStartParams",
    "template",
)

_CLUSTER = _object(
    {
        "rayVersion": _TEXT,
        "authOptions": _object({"mode": {"enum": ["disabled", "token"]}, "secretName": _TEXT}),
        "enableInTreeAutoscaling": {"type": "boolean"},
        "autoscalerOptions": _object(
            {
                "version": {"enum": ["v1", "v2"]},
                "upscalingMode": {"enum": ["Default", "Aggressive", "Conservative"]},
                "idleTimeoutSeconds": _COUNT,
                "image": _TEXT,
                "imagePullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
            }
        ),
        "gcsFaultToleranceOptions": _object(
            {
                "redisAddress": _TEXT,
                "redisUsername": _REDIS_CREDENTIAL,
                "redisPassword": _REDIS_CREDENTIAL,
                "externalStorageNamespace": _TEXT,
            },
            "redisAddress",
        ),
        "headGroupSpec": _HEAD,
        "workerGroupSpecs": {"type": "array", "items": _WORKERS},
    },
    "headGroupSpec",
)

RAY_SERVICE: dict[str, Any] = _object(
    {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayService"},
        "metadata": _object(
            {
                "name": {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"},
                "namespace": _TEXT,
                "labels": _TEXTS_BY_NAME,
                "annotations": _TEXTS_BY_NAME,
            },
            "name",
        ),
        "spec": _object(
            {
                "serveConfigV2": _TEXT,
                "rayClusterConfig": _CLUSTER,
                "excludeHeadPodFromServeSvc": {"type": "boolean"},
                "rayClusterDeletionDelaySeconds": _COUNT,
                "upgradeStrategy": _object(
                    {"type": {"enum": ["NewCluster", "NewClusterWithIncrementalUpgrade", "None"]}}
                ),
            },
            "rayClusterConfig",
        ),
    },
    "apiVersion",
    "kind",
    "metadata",
    "spec",
)
