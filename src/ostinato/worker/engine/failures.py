"""What an engine's words and a container's end mean as failures of an attempt; pure."""

from __future__ import annotations

from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.sizes import format_size
from ostinato.worker.engine.state import ContainerState

#: How engines say that an image is not there, or not for us: no repetition helps.
_NO_IMAGE = (
    "not found",
    "no such image",
    "manifest unknown",
    "name unknown",
    "repository does not exist",
    "access denied",
    "access to the resource is denied",
    "unauthorized",
    "authentication required",
    "invalid reference format",
    "no matching manifest",
)
#: Of these two the first is looked for first: a file that is missing is told with both.
_NOT_FOUND = ("executable file not found", "no such file or directory")
_NOT_EXECUTABLE = ("permission denied", "exec format error", "is a directory")


def pull_failure(image: str, message: str) -> Failure:
    """Why an image could not be fetched."""
    lowered = message.lower()
    code = "IMAGE_NOT_FOUND" if any(words in lowered for words in _NO_IMAGE) else "IMAGE_PULL_FAILED"
    return safe_failure(code, f"image {image} could not be fetched: {message}")


def missing_image(image: str) -> Failure:
    """The image is not there, and the task says that it is never fetched."""
    return safe_failure("IMAGE_NOT_FOUND", f"the engine does not have image {image}, and pull is never")


def create_failure(status: int, message: str) -> Failure:
    """Why a container could not be made: the task's fault unless the engine says that it is its own."""
    # A conflict is about a name; an image that has just gone can be fetched again.
    may_pass = status >= 500 or status == 409 or "no such image" in message.lower()
    code = "CONTAINER_NOT_STARTED" if may_pass else "CONTAINER_REFUSED"
    return safe_failure(code, f"the engine did not make the container: {message}")


def start_failure(message: str) -> Failure:
    """Why a container that was made did not start; codes as a shell would give them where there are such."""
    lowered = message.lower()
    if any(words in lowered for words in _NOT_FOUND):
        return safe_failure("EXIT_127", f"the command was not found in the image: {message}")
    if any(words in lowered for words in _NOT_EXECUTABLE):
        return safe_failure("EXIT_126", f"the command cannot be executed: {message}")
    return safe_failure("CONTAINER_NOT_STARTED", f"the engine could not start the container: {message}")


def exit_failure(state: ContainerState, *, memory_limit_bytes: int | None) -> Failure:
    """Of a container that has ended with an exit status other than 0."""
    if state.is_oom_killed:
        limit = (
            "memory" if memory_limit_bytes is None else f"its memory_limit {format_size(memory_limit_bytes)}"
        )
        return safe_failure("OOM", f"the container was killed because it ran out of {limit}")
    code = state.exit_code
    if not 0 <= code <= 255:
        return safe_failure("CONTAINER_NOT_STARTED", f"the container ended with status {code}: {state.error}")
    said = f": {state.error}" if state.error else ""
    return safe_failure(f"EXIT_{code}", f"the container ended with exit status {code}{_hint(code)}{said}")


def _hint(code: int) -> str:
    return " (killed: SIGKILL, by somebody other than the worker)" if code == 137 else ""


def removed_failure() -> Failure:
    """The container is gone, and not by our doing."""
    return safe_failure(
        "CONTAINER_REMOVED", "the container was removed while it ran, by somebody other than the worker"
    )


def lost_failure(reason: str, *, is_gone: bool) -> Failure:
    """The engine is away; `is_gone`: the container has ended for certain."""
    known = (
        "its container has ended, with what is not known"
        if is_gone
        else "whether its container has ended is not known; it is removed once the engine answers"
    )
    return safe_failure("ENGINE_LOST", f"the container engine does not answer ({reason}); {known}")
