"""The configuration file that `gander ray-config` writes and `serve deploy` reads.

Knows the names of Ray Serve's options, and does not import Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

FRONT, GANDER = "Front", "Gander"
APPLICATION = "server.ray.application:build"
ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
HEADING = """\
# Written by `gander ray-config`; run it with `serve deploy FILE`. Keep to that: a change of the replicas' number then
# moves as few sessions as there can be, which other ways to deploy do not promise.
"""


TARGET = 16  # calls that run or wait in a replica; with more, Ray starts another replica
MOST = 64  # calls in one replica; with more, a session's calls go to another replica
QUEUED = 256  # calls that wait for a place in any replica; with more, the front answers 429
OF_THE_PORT = frozenset(  # settings of the process that listens, which is Ray's
    {
        "max_connections",
        "max_connections_per_address",
        "max_head_bytes",
        "head_seconds",
        "body_seconds",
        "drain_delay",
        "log_level",
    }
)
DRAIN_SECONDS = 600  # how long the streams of a replica that leaves may still take


@dataclass(frozen=True, slots=True)
class RayOptions:
    """replicas, max_replicas: the fewest and the most; cpus, gpus: of each replica; host, port: where Ray listens."""

    replicas: int
    max_replicas: int
    cpus: float
    gpus: float
    host: str = "127.0.0.1"
    port: int = 8000


def config_of(options: RayOptions, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The file's content. settings: those of `gander serve`, the same for each replica."""
    replicas: dict[str, Any] = {
        "name": GANDER,
        "max_ongoing_requests": MOST,
        "max_queued_requests": QUEUED,
        "graceful_shutdown_timeout_s": DRAIN_SECONDS,
        "ray_actor_options": {"num_cpus": options.cpus, "num_gpus": options.gpus},
        "request_router_config": {"request_router_class": ROUTER},
    }
    if options.max_replicas > options.replicas:
        replicas["autoscaling_config"] = {
            "min_replicas": options.replicas,
            "max_replicas": options.max_replicas,
            "target_ongoing_requests": TARGET,
            "upscale_delay_s": 10,
            "downscale_delay_s": 600,  # long, because what a replica's sessions have learned is lost with it
        }
    else:
        replicas["num_replicas"] = options.replicas
    front = {
        "name": FRONT,
        "num_replicas": 1,
        "max_ongoing_requests": 4096,
        "graceful_shutdown_timeout_s": DRAIN_SECONDS,
        "ray_actor_options": {"num_cpus": 0.1},
    }
    application = {
        "name": "gander",
        "route_prefix": "/",
        "import_path": APPLICATION,
        "args": dict(settings),
        "deployments": [front, replicas],
    }
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": options.host, "port": options.port},
        "applications": [application],
    }


def written(config: Mapping[str, Any]) -> str:
    return HEADING + yaml.safe_dump(dict(config), sort_keys=False)
