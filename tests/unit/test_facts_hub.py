"""Hub ids against a small server that stands for the hub, and against a cache made by hand."""

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.unit.facts_checkpoints import dflash, index_of, qwen3_5, safetensors, write_hub_cache

REPO = Path(__file__).parents[2]
COMMIT, RETRAINED = "a" * 40, "b" * 40
MIB = 1024**2


class FakeHub:
    """The hub's file list, files by byte range, and 404s; notes what was asked and how many bytes were sent.

    `models` maps a hub id to its revisions, a revision to its files. `status` answers every request with an error;
    `ignores_ranges` sends whole files, as some proxies do.
    """

    def __init__(self) -> None:
        self.models: dict[str, dict[str, dict[str, bytes]]] = {}
        self.requests: list[str] = []
        self.sent: dict[str, int] = {}
        self.status: int | None = None
        self.hangs = self.ignores_ranges = False
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.split("?")[0]
        self.requests.append(f"{request.command} {request.path} {request.headers.get('Range', '')}".strip())
        if self.hangs:
            time.sleep(60)
        if self.status:
            return self.send(request, self.status, b"{}")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self.file_list(request, match[1], match[2] or "main")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/(.+)", path):
            return self.tree(request, match[1], match[2])
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.file(request, match[1], match[2], match[3])
        return self.send(request, 404, b"{}")

    def find(self, request: BaseHTTPRequestHandler, repo: str, revision: str) -> dict[str, bytes] | None:
        if repo not in self.models:
            self.send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif revision not in self.models[repo]:
            self.send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            return self.models[repo][revision]
        return None

    def file_list(self, request: BaseHTTPRequestHandler, repo: str, revision: str) -> None:
        files = self.find(request, repo, revision)
        if files is not None:
            siblings = [{"rfilename": name, **described(name, content)} for name, content in files.items()]
            body = {"id": repo, "sha": self.commit(repo, revision), "siblings": siblings}
            self.send(request, 200, json.dumps(body).encode())

    def tree(self, request: BaseHTTPRequestHandler, repo: str, revision: str) -> None:
        files = self.find(request, repo, revision)
        if files is not None:
            entries = [
                {"type": "file", "path": name, "oid": "0" * 40, **described(name, content, "oid")}
                for name, content in files.items()
            ]
            self.send(request, 200, json.dumps(entries).encode())

    def file(self, request: BaseHTTPRequestHandler, repo: str, revision: str, name: str) -> None:
        files = self.find(request, repo, revision)
        if files is None:
            return
        if name not in files:
            return self.send(request, 404, b"{}", {"X-Error-Code": "EntryNotFound"})
        content = files[name]
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": self.commit(repo, revision)}
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if span and not self.ignores_ranges:
            content = content[int(span[1]) : int(span[2]) + 1]
        self.send(request, 206 if span and not self.ignores_ranges else 200, content, headers, name)

    def commit(self, repo: str, revision: str) -> str:
        files = self.models[repo][revision]
        return next(name for name, other in self.models[repo].items() if len(name) == 40 and other is files)

    def send(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        name: str = "",
    ) -> None:
        request.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            request.send_header(key, value)
        request.end_headers()
        if request.command == "HEAD":
            return
        try:
            for start in range(0, len(body), 65536):
                request.wfile.write(body[start : start + 65536])
                self.sent[name] = self.sent.get(name, 0) + len(body[start : start + 65536])
        except OSError:
            pass


def described(name: str, content: bytes, key: str = "sha256") -> dict[str, object]:
    """As the hub describes a file: large ones with their content hash."""
    plain: dict[str, object] = {"size": len(content), "blobId": "0" * 40}
    if not name.endswith(".safetensors"):
        return plain
    return plain | {"lfs": {key: hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    fake = FakeHub()
    yield fake
    fake.stop()


def run(code: str, cache: Path, endpoint: str, **env: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the hub client reads its environment once, on import."""
    prelude = (
        "from hybrid_serve.facts.checkpoint import read_drafter, read_target\n"
        "from hybrid_serve.facts.hub import materialise\n"
    )
    return subprocess.run(
        [sys.executable, "-c", prelude + code],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=60,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPO),
            "HOME": str(cache),
            "HF_HUB_CACHE": str(cache),
            "HF_ENDPOINT": endpoint,
            "NO_PROXY": "127.0.0.1",
            **env,
        },
    )


def answer(code: str, cache: Path, endpoint: str, **env: str) -> str:
    result = run(code, cache, endpoint, **env)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def error(code: str, cache: Path, endpoint: str, **env: str) -> str:
    """The FactsError; it must come in seconds."""
    start = time.monotonic()
    result = run(code, cache, endpoint, **env)
    assert time.monotonic() - start < 20
    assert result.returncode != 0
    assert "FactsError" in result.stderr, result.stderr
    return result.stderr[result.stderr.rindex("FactsError") :]


def drafter_files(seed: int) -> dict[str, bytes]:
    """4 MiB of weights whose header and size do not depend on `seed`."""
    return {
        "config.json": json.dumps(dflash()).encode(),
        "model.safetensors": safetensors({"fc.weight": bytes([seed]) * (4 * MIB)}),
    }


def sharded_target() -> dict[str, bytes]:
    return {
        "config.json": json.dumps(qwen3_5()).encode(),
        "model-1.safetensors": safetensors({"a": b"\1" * MIB}),
        "model-2.safetensors": safetensors({"b": b"\2" * (2 * MIB)}),
        "model.safetensors.index.json": index_of("model-1.safetensors", "model-2.safetensors"),
        "tokenizer.json": b"{}",
    }


def header_bytes(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")


def refused_port() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


FINGERPRINT = "f = read_drafter('z-lab/draft'); print(f.revision, f.weights_bytes, f.fingerprint)"


@pytest.mark.parametrize("ignores_ranges", [False, True])
def test_before_planning_no_byte_of_weight_data_is_taken(hub: FakeHub, tmp_path: Path, ignores_ranges: bool) -> None:
    files = sharded_target()
    hub.models["Qwen/target"] = {"main": files, COMMIT: files}
    hub.ignores_ranges = ignores_ranges
    printed = answer(
        "f = read_target('Qwen/target'); print(f.revision, f.weights_bytes, f.layers.count)", tmp_path, hub.url
    )
    assert printed == f"{COMMIT} {3 * MIB} 40"
    for name in ("model-1.safetensors", "model-2.safetensors"):
        ranges = [request.split("bytes=")[1] for request in hub.requests if name in request]
        assert ranges == ["0-7", f"8-{header_bytes(files[name]) - 1}"]
        if not ignores_ranges:
            assert hub.sent[name] == header_bytes(files[name])
    assert "tokenizer.json" not in hub.sent
    assert not list(tmp_path.rglob("*.safetensors"))


def test_everything_is_read_at_the_commit_that_the_revision_names(hub: FakeHub, tmp_path: Path) -> None:
    hub.models["Qwen/target"] = {"main": sharded_target(), COMMIT: {}}
    hub.models["Qwen/target"][COMMIT] = hub.models["Qwen/target"]["main"]
    answer("read_target('Qwen/target', 'main')", tmp_path, hub.url)
    files = [request for request in hub.requests if "/resolve/" in request]
    assert len(files) == 6
    assert all(f"/resolve/{COMMIT}/" in request for request in files)


def test_a_drafter_retrained_under_its_name_has_another_fingerprint(hub: FakeHub, tmp_path: Path) -> None:
    old, new = drafter_files(1), drafter_files(2)
    hub.models["z-lab/draft"] = {"main": old, COMMIT: old, RETRAINED: new}
    before = answer(FINGERPRINT, tmp_path, hub.url)
    hub.models["z-lab/draft"]["main"] = new
    after = answer(FINGERPRINT, tmp_path, hub.url)
    (commit1, bytes1, print1), (commit2, bytes2, print2) = before.split(), after.split()
    assert (commit1, commit2, bytes1, bytes2) == (COMMIT, RETRAINED, str(4 * MIB), str(4 * MIB))
    assert print1.split("/")[0] == print2.split("/")[0]
    assert print1.split("/")[1] != print2.split("/")[1]
    pinned = answer(FINGERPRINT.replace("'z-lab/draft'", f"'z-lab/draft', '{COMMIT}'"), tmp_path, hub.url)
    assert pinned == before


def test_materialise_downloads_all_of_the_pinned_commit(hub: FakeHub, tmp_path: Path) -> None:
    old, new = drafter_files(1), drafter_files(2)
    hub.models["z-lab/draft"] = {"main": new, COMMIT: old, RETRAINED: new}
    folder = Path(answer(f"print(materialise('z-lab/draft', '{COMMIT}'))", tmp_path, hub.url))
    assert folder.name == COMMIT
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == old


def test_hub_its_cache_and_the_downloaded_folder_have_one_fingerprint(hub: FakeHub, tmp_path: Path) -> None:
    files = drafter_files(1)
    hub.models["z-lab/draft"] = {"main": files, COMMIT: files}
    online = answer(FINGERPRINT, tmp_path, hub.url)
    folder = answer("print(materialise('z-lab/draft'))", tmp_path, hub.url)
    hub.requests.clear()
    assert answer(FINGERPRINT, tmp_path, hub.url, HF_HUB_OFFLINE="1") == online
    assert hub.requests == []
    from_folder = answer(f"print(read_drafter({folder!r}).fingerprint)", tmp_path, hub.url)
    assert online.endswith(from_folder)


@pytest.mark.parametrize("offline", ["0", "1"], ids=["refused", "HF_HUB_OFFLINE"])
def test_a_cached_copy_works_without_a_network(tmp_path: Path, offline: str) -> None:
    snapshot = write_hub_cache(tmp_path, "z-lab/draft", COMMIT, drafter_files(1))
    code = f"{FINGERPRINT}; print(materialise('z-lab/draft')); print(materialise('z-lab/draft', '{COMMIT}'))"
    lines = answer(code, tmp_path, refused_port(), HF_HUB_OFFLINE=offline).splitlines()
    assert lines[0].startswith(f"{COMMIT} {4 * MIB} ")
    assert lines[1:] == [str(snapshot)] * 2


def test_a_pinned_download_is_found_without_a_network_by_name_while_it_is_the_only_one(
    hub: FakeHub, tmp_path: Path
) -> None:
    old, new = drafter_files(1), drafter_files(2)
    hub.models["z-lab/draft"] = {COMMIT: old, RETRAINED: new}
    answer(f"materialise('z-lab/draft', '{COMMIT}')", tmp_path, hub.url)
    assert answer(FINGERPRINT, tmp_path, refused_port()).startswith(COMMIT)
    answer(f"materialise('z-lab/draft', '{RETRAINED}')", tmp_path, hub.url)
    assert "is not in the cache" in error(FINGERPRINT, tmp_path, refused_port())


def test_the_latest_download_by_name_is_what_that_name_means_without_a_network(hub: FakeHub, tmp_path: Path) -> None:
    old, new = drafter_files(1), drafter_files(2)
    hub.models["z-lab/draft"] = {"main": old, COMMIT: old, RETRAINED: new}
    answer("materialise('z-lab/draft')", tmp_path, hub.url)
    hub.models["z-lab/draft"]["main"] = new
    answer("materialise('z-lab/draft')", tmp_path, hub.url)
    assert answer(FINGERPRINT, tmp_path, refused_port()).startswith(RETRAINED)


def test_a_cached_config_without_weights_gives_facts_without_identity(tmp_path: Path) -> None:
    write_hub_cache(tmp_path, "z-lab/draft", COMMIT, {"config.json": drafter_files(1)["config.json"]})
    assert answer(FINGERPRINT, tmp_path, refused_port()).endswith("/no-weights")


def test_half_a_cached_model_is_not_given_to_an_engine(tmp_path: Path) -> None:
    files = sharded_target()
    del files["model-2.safetensors"]
    write_hub_cache(tmp_path, "Qwen/target", COMMIT, files)
    assert "incomplete" in error("materialise('Qwen/target')", tmp_path, refused_port())


@pytest.mark.parametrize("call", ["read_drafter", "materialise"])
@pytest.mark.parametrize("offline", ["0", "1"], ids=["refused", "HF_HUB_OFFLINE"])
def test_without_network_and_cache_the_error_says_what_to_do(tmp_path: Path, call: str, offline: str) -> None:
    message = error(f"{call}('z-lab/draft', 'v2')", tmp_path, refused_port(), HF_HUB_OFFLINE=offline)
    for part in ("z-lab/draft (revision v2)", "Check the network", "HF_HUB_OFFLINE", "hf download z-lab/draft"):
        assert part in message


@pytest.mark.parametrize("call", ["read_drafter", "materialise"])
@pytest.mark.parametrize("failure", ["hangs", 503, 429])
def test_a_hub_that_fails_is_given_up_in_seconds(hub: FakeHub, tmp_path: Path, call: str, failure: object) -> None:
    hub.models["z-lab/draft"] = {"main": {}, COMMIT: {}}
    hub.hangs, hub.status = failure == "hangs", failure if isinstance(failure, int) else None
    message = error(f"{call}('z-lab/draft')", tmp_path, hub.url)
    assert "could not be fetched" in message
    assert failure == "hangs" or str(failure) in message


def test_a_failing_hub_is_no_matter_with_a_cached_copy(hub: FakeHub, tmp_path: Path) -> None:
    hub.status = 503
    write_hub_cache(tmp_path, "z-lab/draft", COMMIT, drafter_files(1))
    assert answer(FINGERPRINT, tmp_path, hub.url).startswith(COMMIT)


def test_an_unknown_model_is_told_from_an_unknown_revision(hub: FakeHub, tmp_path: Path) -> None:
    files = drafter_files(1)
    hub.models["z-lab/draft"] = {"main": files, COMMIT: files}
    assert "private or gated" in error("read_drafter('z-lab/daft')", tmp_path, hub.url)
    assert "no revision 'v9'" in error("read_drafter('z-lab/draft', 'v9')", tmp_path, hub.url)


def test_a_hub_model_without_config_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    hub.models["z-lab/draft"] = {"main": {}, COMMIT: {}}
    hub.models["z-lab/draft"][COMMIT] = hub.models["z-lab/draft"]["main"]
    assert "has no config.json" in error("read_drafter('z-lab/draft')", tmp_path, hub.url)


def test_materialise_gives_a_folder_back(tmp_path: Path) -> None:
    assert answer(f"print(materialise({str(tmp_path)!r}))", tmp_path, refused_port()) == str(tmp_path)


def test_facts_import_fast_and_without_the_heavy_packages() -> None:
    code = (
        "import sys, time; start = time.perf_counter()\n"
        "from hybrid_serve.facts import assemble, catalogue, checkpoint, fingerprint, hub, memory, pairing, probe\n"
        "print(time.perf_counter() - start)\n"
        "print([m for m in ('torch', 'vllm', 'ray', 'transformers', 'huggingface_hub') if m in sys.modules])"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True).stdout
        for _ in range(3)
    ]
    assert {run.splitlines()[1] for run in runs} == {"[]"}
    assert min(float(run.splitlines()[0]) for run in runs) < 0.3
