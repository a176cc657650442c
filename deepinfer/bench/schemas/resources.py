"""Twenty schemas of resources of a cluster, which share parts.

It does not know what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer.bench.schemas.build import (
    FLAG,
    TEXT,
    Schema,
    either,
    fixed,
    form,
    like,
    many,
    maybe,
    record,
    ref,
    table,
    text,
    where,
    whole,
    word,
)

_LABEL = like("^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$")
_QUANTITY = like("^[0-9]{1,6}(m|Ki|Mi|Gi)?$")
_META = record(
    {
        "name": _LABEL,
        "namespace?": _LABEL,
        "labels?": table(text(0, 63), maxProperties=4),
        "annotations?": table(TEXT, maxProperties=3),
    }
)
_PORT = either(whole(1, 65535), _LABEL)
_RESOURCES = record(
    {
        "limits?": record({"cpu?": _QUANTITY, "memory?": _QUANTITY}),
        "requests?": record({"cpu?": _QUANTITY, "memory?": _QUANTITY}),
    }
)
_ENV = either(
    record({"name": like("^[A-Z_]{1,30}$"), "value": text(0, 100)}),
    record(
        {"name": like("^[A-Z_]{1,30}$"), "valueFrom": record({"secret": _LABEL, "key": _LABEL})}
    ),
)
_CONTAINER = record(
    {
        "name": _LABEL,
        "image": like("^[a-z0-9./-]+(:[a-z0-9.-]+)?$", maxLength=80),
        "args?": many(text(1, 60), 0, 5),
        "env?": many(_ENV, 0, 3),
        "ports?": many(
            record({"containerPort": whole(1, 65535), "protocol?": word("TCP", "UDP")}), 0, 3
        ),
        "resources?": ref("resources"),
        "imagePullPolicy?": word("Always", "Never", "IfNotPresent"),
    }
)
_POD = record(
    {
        "containers": many(ref("container"), 1, 3),
        "restartPolicy?": word("Always", "OnFailure", "Never"),
        "nodeSelector?": table(TEXT, maxProperties=3),
        "serviceAccountName?": _LABEL,
        "volumes?": many(record({"name": _LABEL, "emptyDir?": record({}), "path?": TEXT}), 0, 3),
    }
)


def _resource(version: str, kind: str, spec: Schema, **more: Schema) -> Schema:
    fields = {
        "apiVersion": fixed(version),
        "kind": fixed(kind),
        "metadata": ref("meta"),
        "spec": spec,
    }
    parts: dict[str, Schema] = {
        "meta": _META,
        "resources": _RESOURCES,
        "container": _CONTAINER,
        "pod": _POD,
    }
    return where(record(fields), **parts, **more)


RESOURCES: Mapping[str, Schema] = {
    "pod": _resource("v1", "Pod", ref("pod")),
    "deployment": _resource(
        "apps/v1",
        "Deployment",
        record(
            {
                "replicas": whole(0, 1000),
                "selector": record({"matchLabels": table(TEXT, maxProperties=3)}),
                "template": record({"metadata?": ref("meta"), "spec": ref("pod")}),
                "strategy?": record({"type": word("Recreate", "RollingUpdate")}),
            }
        ),
    ),
    "stateful_set": _resource(
        "apps/v1",
        "StatefulSet",
        record(
            {
                "serviceName": _LABEL,
                "replicas?": whole(0, 100),
                "template": record({"spec": ref("pod")}),
            }
        ),
    ),
    "daemon_set": _resource(
        "apps/v1", "DaemonSet", record({"template": record({"spec": ref("pod")})})
    ),
    "job": _resource(
        "batch/v1",
        "Job",
        record(
            {
                "completions?": whole(1),
                "parallelism?": whole(1),
                "backoffLimit?": whole(0, 10),
                "template": record({"spec": ref("pod")}),
            }
        ),
    ),
    "cron_job": _resource(
        "batch/v1",
        "CronJob",
        record(
            {
                "schedule": like(r"^(\*|[0-9]{1,2})( (\*|[0-9]{1,2})){4}$"),
                "suspend?": FLAG,
                "concurrencyPolicy?": word("Allow", "Forbid", "Replace"),
            }
        ),
    ),
    "service": _resource(
        "v1",
        "Service",
        record(
            {
                "type?": word("ClusterIP", "NodePort", "LoadBalancer"),
                "selector?": table(TEXT, maxProperties=3),
                "ports": many(
                    record({"name?": _LABEL, "port": whole(1, 65535), "targetPort?": _PORT}), 1, 4
                ),
            }
        ),
    ),
    "ingress": _resource(
        "networking.k8s.io/v1",
        "Ingress",
        record(
            {
                "rules": many(
                    record(
                        {
                            "host?": form("hostname"),
                            "paths": many(
                                record(
                                    {
                                        "path": like("^/[a-z/]{0,30}$"),
                                        "pathType": word("Exact", "Prefix"),
                                        "service": _LABEL,
                                        "port": _PORT,
                                    }
                                ),
                                1,
                                3,
                            ),
                        }
                    ),
                    1,
                    3,
                )
            }
        ),
    ),
    "config_map": where(
        record(
            {
                "kind": fixed("ConfigMap"),
                "metadata": ref("meta"),
                "data": table(TEXT, maxProperties=5),
                "immutable?": FLAG,
            }
        ),
        meta=_META,
    ),
    "secret": where(
        record(
            {
                "kind": fixed("Secret"),
                "metadata": ref("meta"),
                "type": word("Opaque", "tls"),
                "data": table(like("^([A-Za-z0-9+/]{4}){0,20}$"), maxProperties=3),
            }
        ),
        meta=_META,
    ),
    "namespace": where(record({"kind": fixed("Namespace"), "metadata": ref("meta")}), meta=_META),
    "role": where(
        record(
            {
                "kind": fixed("Role"),
                "metadata": ref("meta"),
                "rules": many(
                    record(
                        {
                            "apiGroups": many(TEXT, 1, 2),
                            "resources": many(_LABEL, 1, 4),
                            "verbs": many(
                                word("get", "list", "watch", "create", "update", "delete"), 1, 6
                            ),
                        }
                    ),
                    1,
                    3,
                ),
            }
        ),
        meta=_META,
    ),
    "role_binding": where(
        record(
            {
                "kind": fixed("RoleBinding"),
                "metadata": ref("meta"),
                "role": _LABEL,
                "subjects": many(
                    record({"kind": word("User", "Group"), "name": text(1, 60)}), 1, 4
                ),
            }
        ),
        meta=_META,
    ),
    "volume_claim": _resource(
        "v1",
        "PersistentVolumeClaim",
        record(
            {
                "accessModes": many(word("ReadWriteOnce", "ReadOnlyMany"), 1, 2),
                "storage": _QUANTITY,
                "storageClassName?": maybe(_LABEL),
            }
        ),
    ),
    "autoscaler": _resource(
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
        record(
            {
                "minReplicas": whole(1, 100),
                "maxReplicas": whole(1, 1000),
                "target": _LABEL,
                "metrics": many(
                    record({"name": word("cpu", "memory"), "percent": whole(1, 100)}), 1, 2
                ),
            }
        ),
    ),
    "network_policy": _resource(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        record(
            {
                "podSelector": table(TEXT, maxProperties=2),
                "policyTypes": many(word("Ingress", "Egress"), 1, 2),
                "ingress?": many(
                    record(
                        {
                            "ports": many(whole(1, 65535), 1, 3),
                            "cidr?": like(r"^([0-9]{1,3}\.){3}[0-9]{1,3}/[0-9]{1,2}$"),
                        }
                    ),
                    0,
                    2,
                ),
            }
        ),
    ),
    "quota": _resource(
        "v1", "ResourceQuota", record({"hard": record({"pods?": _QUANTITY, "cpu?": _QUANTITY})})
    ),
    "limit_range": _resource(
        "v1",
        "LimitRange",
        record(
            {
                "limits": many(
                    record({"type": word("Pod", "Container"), "max": ref("resources")}), 1, 2
                )
            }
        ),
    ),
    "event": where(
        record(
            {
                "kind": fixed("Event"),
                "metadata": ref("meta"),
                "reason": text(1, 40),
                "count": whole(1),
                "type": word("Normal", "Warning"),
                "lastTimestamp": form("date-time"),
            }
        ),
        meta=_META,
    ),
    "probe": record(
        {
            "initialDelaySeconds?": whole(0, 600),
            "periodSeconds?": whole(1, 600),
            "action": either(
                record({"httpGet": record({"path": TEXT, "port": _PORT})}),
                record({"tcpSocket": record({"port": _PORT})}),
                record({"exec": record({"command": many(TEXT, 1, 4)})}),
            ),
        }
    ),
}
