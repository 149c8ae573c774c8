"""What is put right in the HAProxy configuration that Ray Serve writes."""

import os
import subprocess
import sys
from pathlib import Path

from deployments import haproxy_exec
from deployments.haproxy_exec import local
from deployments.local_haproxy import haproxy_environment

WRITTEN = """defaults
    option abortonclose
    option splice-request
    option splice-response
frontend http_frontend
    bind 127.0.0.1:8000
frontend prometheus
    bind :9101
listen stats
  bind *:8404
"""


def test_everything_is_on_loopback_and_nothing_is_spliced() -> None:
    assert local(WRITTEN) == (
        "defaults\n    option abortonclose\n"
        "frontend http_frontend\n    bind 127.0.0.1:8000\n"
        "frontend prometheus\n    bind 127.0.0.1:9101\n"
        "listen stats\n  bind 127.0.0.1:8404\n"
    )


def test_the_program_is_run_with_its_arguments(tmp_path: Path) -> None:
    configuration = tmp_path / "haproxy.cfg"
    configuration.write_text(WRITTEN)
    command = [sys.executable, haproxy_exec.__file__, "/bin/echo", "-f", str(configuration)]
    assert subprocess.run(command, capture_output=True, text=True).stdout == f"-f {configuration}\n"
    assert configuration.read_text() == local(WRITTEN)


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """`sh` starts it and is gone at once; a pipe that it holds open tells when it is gone, too."""
    reading, writing = os.pipe()
    program = f"{sys.executable} {haproxy_exec.__file__} /bin/sleep 60 & sleep 1"
    subprocess.run(["sh", "-c", program], pass_fds=[writing], check=True)
    os.close(writing)
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_two_clusters_on_one_machine_share_no_file_and_no_port(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = (haproxy_environment(tmp_path / name) for name in ("a", "b"))
    own = [name for name in first if name.endswith(("_PORT", "_LOC", "_PATH", "_BASE", "_FILE"))]
    assert len(own) == 8
    assert all(first[name] != second[name] for name in own)
