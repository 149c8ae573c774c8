"""`python -m deployments.serve_demo --port 8000`: the app on a Ray of its own, until Ctrl-C.

`serve run deployments:app` does the same on port 8000; it has no option for another port.
"""

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ray import serve
from ray.serve.config import HTTPOptions

from deployments.builder import build
from deployments.errors import AppError, last_exception
from deployments.loading import load_config
from deployments.local_nodes import local_nodes
from deployments.local_ray import private_ray
from deployments.overrides import from_command_line

OBJECT_STORE_BYTES = 128 * 2**20
"""Requests and answers pass by gRPC: Ray's object store holds next to nothing."""


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM. Answers the exit status: 2 for a configuration that can't be served."""
    options = _parser().parse_args(arguments)
    try:
        config = load_config(options.config, from_command_line(options.overrides))
        app = build(config)
    except AppError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    # Ray takes over SIGTERM when it starts, so ours come after it.
    nodes = list(local_nodes(config).values())
    with private_ray(nodes, object_store_memory=OBJECT_STORE_BYTES), _asked_to_stop() as stop:
        # One proxy: all nodes are this machine.
        serve.start(proxy_location="HeadOnly", http_options=HTTPOptions(host=options.host, port=options.port))
        serve._run(app, _blocking=False)
        if not _wait_until_ready(stop):
            # An engine that is starting can't be asked to stop: it ends with Ray.
            return 0 if stop.is_set() else 1
        _say_ready([served.name for served in config.served], options.host, options.port)
        stop.wait()
        serve.shutdown()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deployments.serve_demo", description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="HTTP port (default 8000)")
    parser.add_argument("--host", default="127.0.0.1", help="HTTP address (default 127.0.0.1)")
    parser.add_argument("--config", help="configuration file (default: the demo's)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. engine.max_model_len=1024")
    return parser


@contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, so that both end the program the same way, once."""
    stop = threading.Event()

    def ask(number: int, frame: object) -> None:
        if not stop.is_set():
            print("stopping", file=sys.stderr)
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_until_ready(stop: threading.Event) -> bool:
    """True once the app runs; False if it failed or was asked to stop before."""
    while not stop.wait(0.25):
        application = serve.status().applications.get(serve._private.constants.SERVE_DEFAULT_APP_NAME)
        if application is None:
            continue
        if application.status == "RUNNING":
            return True
        if application.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            for name, deployment in application.deployments.items():
                if deployment.message:
                    print(f"Error: {name}: {last_exception(deployment.message)}", file=sys.stderr)
            return False
    return False


def _say_ready(models: list[str], host: str, port: int) -> None:
    url = f"http://{host}:{port}"
    print(f"ready: {url}/v1 serves {', '.join(models)}")
    request = f'{{"model": "{models[0]}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    print(f"try: curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{request}'", flush=True)


if __name__ == "__main__":
    logging.getLogger("ray").setLevel(logging.INFO)
    sys.exit(main())
