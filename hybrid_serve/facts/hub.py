"""Hub ids: facts from a few kilobytes, pinned to a commit; the weights only when an engine is about to start.

Before planning, three kinds of requests are made: the file list (with content hashes), config.json and the weight
index, and the header of each safetensors file by byte range. Nothing is retried: a planner that waits is worse than one
that says what is wrong. If the hub cannot be reached, a copy in the local Hugging Face cache is used.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.errors import FactsError, fail
from hybrid_serve.facts.source import CONFIG_NAME, Checkpoint, local_folder, read_config
from hybrid_serve.facts.weights import (
    INDEX_NAME,
    PREFIX_BYTES,
    Header,
    Weights,
    content_identity,
    folder_weights,
    header_length,
    parse_header,
    used_files,
)

TIMEOUT_S = 5.0
CONNECTIONS = 8

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def open_hub_checkpoint(repo_id: str, revision: str | None = None) -> Checkpoint:
    """The checkpoint of a hub id at the commit that `revision` (default `main`) names now.

    Raises:
        FactsError: no such model or revision, no access, or no way to reach the hub and no cached copy.
    """
    return _online_or_cached(repo_id, revision, lambda: _from_hub(repo_id, revision), _from_cache)


def materialise(source: str, revision: str | None = None) -> Path:
    """The local folder of a checkpoint; of a hub id the whole snapshot is downloaded first.

    Safe to call again: what is in the cache is not fetched twice. Give the commit that the facts name
    (`TargetFacts.revision`), or the weights may be newer than the plan.

    Raises:
        FactsError: as `open_hub_checkpoint`; or the snapshot is incomplete.
    """
    folder = local_folder(source, revision)
    if folder is not None:
        return folder
    from huggingface_hub import snapshot_download

    def download() -> Path:
        commit = _model_info(source, revision).sha
        snapshot = Path(snapshot_download(source, revision=commit, etag_timeout=TIMEOUT_S))
        _remember(snapshot, revision)
        return snapshot

    path = _online_or_cached(source, revision, download, _cached_snapshot)
    if folder_weights(path, incomplete_ok=True) == Weights() and any(path.glob("*.safetensors*")):
        raise fail(
            f"The cached copy of {_name(source, revision)} in {path} is incomplete, and the hub was not reached",
            f"Check the network, or fetch it where there is one: `hf download {source}`",
        )
    return path


def _online_or_cached(
    repo_id: str,
    revision: str | None,
    online: Callable[[], Result],
    cached: Callable[[str, str | None], Result | None],
) -> Result:
    """`online()`, or `cached(...)` if that fails for want of network or access."""
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return online()
    except RevisionNotFoundError:
        raise fail(
            f"{repo_id} has no revision {revision!r} on the hub", "Give a branch, tag or commit that exists, or none"
        ) from None
    except (_http_error(), OSError) as error:
        copy = cached(repo_id, revision)
        if copy is not None:
            logger.warning("%s: using the cached copy (%s)", _name(repo_id, revision), _short(error))
            return copy
        if isinstance(error, GatedRepoError | RepositoryNotFoundError):
            raise fail(
                f"{_name(repo_id, revision)} is not on the hub, or is private or gated",
                "Check the id; for a private or gated model set HF_TOKEN or run `hf auth login`",
            ) from None
        answered = isinstance(error, HfHubHTTPError)
        raise fail(
            f"{_name(repo_id, revision)} could not be fetched, and is not in the cache: "
            f"the hub {'answered' if answered else 'was not reached'} ({_short(error)})",
            f"Check the network and HF_ENDPOINT, HF_HUB_OFFLINE; or give a folder; or fill the cache where there is a "
            f"network: `hf download {repo_id}`",
        ) from None


def _from_hub(repo_id: str, revision: str | None) -> Checkpoint:
    info = _model_info(repo_id, revision)
    commit: str = info.sha
    names = [file.rfilename for file in info.siblings]
    if CONFIG_NAME not in names:
        raise fail(f"{_name(repo_id, revision)} has no {CONFIG_NAME}", "Give the id of a model in transformers format")

    def fetch(name: str) -> Config:
        return Config.parse(_fetch(repo_id, commit, name), f"{repo_id}@{commit[:12]}/{name}")

    config = fetch(CONFIG_NAME)
    files = used_files(names, fetch(INDEX_NAME) if INDEX_NAME in names else None)
    hashes = {file.rfilename: file.lfs.sha256 if file.lfs else file.blob_id for file in info.siblings}
    absent = [name for name in files if name not in hashes]
    if absent:
        raise fail(
            f"{_name(repo_id, revision)} lacks {', '.join(absent)}, named by {INDEX_NAME}", "Try another revision"
        )
    return Checkpoint(
        source=repo_id, revision=commit, config=config, weights=_hub_weights(repo_id, commit, files, hashes)
    )


def _hub_weights(repo_id: str, commit: str, files: Sequence[str], hashes: dict[str, str]) -> Weights:
    if not files:
        return Weights()
    pool = ThreadPoolExecutor(CONNECTIONS)
    try:
        headers = list(pool.map(lambda name: _fetch_header(repo_id, commit, name), files))
    finally:
        pool.shutdown(cancel_futures=True)
    return Weights(
        data_bytes=sum(header.data_bytes for header in headers),
        identity=content_identity({name: hashes[name] for name in files}),
        dtypes=frozenset().union(*(header.dtypes for header in headers)),
    )


def _fetch_header(repo_id: str, commit: str, name: str) -> Header:
    where = f"{repo_id}@{commit[:12]}/{name}"
    length = header_length(_fetch(repo_id, commit, name, 0, PREFIX_BYTES), where)
    return parse_header(_fetch(repo_id, commit, name, PREFIX_BYTES, length), where)


def _fetch(repo_id: str, commit: str, name: str, start: int = 0, length: int | None = None) -> bytes:
    """A file, or `length` bytes of it. Reading stops there even if the server ignores the range."""
    from huggingface_hub import get_session, hf_hub_url, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    headers = build_hf_headers()
    if length is not None:
        headers["Range"] = f"bytes={start}-{start + length - 1}"
    url = hf_hub_url(repo_id, name, revision=commit)
    with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S, follow_redirects=True) as response:
        if response.status_code >= 400:
            response.read()
        hf_raise_for_status(response)
        if length is None:
            return bytes(response.read())
        skip = 0 if response.status_code == 206 else start
        body = b""
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) >= skip + length:
                break
    body = body[skip : skip + length]
    if len(body) < length:
        raise fail(f"{repo_id}@{commit[:12]}/{name} ends after {start + len(body)} bytes", "Try another revision")
    return body


def _model_info(repo_id: str, revision: str | None) -> Any:
    from huggingface_hub import HfApi

    return HfApi().model_info(repo_id, revision=revision, timeout=TIMEOUT_S, files_metadata=True)


def _from_cache(repo_id: str, revision: str | None) -> Checkpoint | None:
    """The cached copy. Its weights count only if all files are there: half a model has no identity."""
    snapshot = _cached_snapshot(repo_id, revision)
    if snapshot is None:
        return None
    return Checkpoint(
        source=repo_id,
        revision=snapshot.name,
        config=read_config(snapshot),
        weights=folder_weights(snapshot, incomplete_ok=True),
    )


def _cached_snapshot(repo_id: str, revision: str | None) -> Path | None:
    """The cached folder of a revision. Without one: of `main` as last seen, or else the only commit cached (a pinned
    download does not say which branch it was)."""
    from huggingface_hub import constants, try_to_load_from_cache

    path = try_to_load_from_cache(repo_id, CONFIG_NAME, revision=revision)
    if isinstance(path, str):
        return Path(path).parent
    if revision is not None:
        return None
    repo = Path(constants.HF_HUB_CACHE) / f"models--{repo_id.replace('/', '--')}"
    only = [found.parent for found in repo.glob(f"snapshots/*/{CONFIG_NAME}")]
    return only[0] if len(only) == 1 else None


def _remember(snapshot: Path, revision: str | None) -> None:
    """Note in the cache which commit a branch or tag named, as the hub client does for a download by name."""
    name = revision or "main"
    if name != snapshot.name:
        reference = snapshot.parents[1] / "refs" / name
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(snapshot.name)


def _http_error() -> type[Exception]:
    """The base of the HTTP client's errors; which client that is differs between huggingface_hub releases."""
    from huggingface_hub.errors import HfHubHTTPError

    return next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")


def _name(repo_id: str, revision: str | None) -> str:
    return f"{repo_id} (revision {revision or 'main'})"


def _short(error: Exception) -> str:
    if isinstance(error, FactsError):
        return str(error)
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
