"""Failure policy: what the run does when something fails. It is asked here; acting on the answer is done elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from raysim.errors import RaysimError, one_line

if TYPE_CHECKING:
    from raysim.config import RunConfig


class Decision(Enum):
    """An answer of the failure policy."""

    RETRY = "do it again"
    REPLACE = "start another actor in its place"
    GIVE_UP = "go on without that actor"
    SKIP = "leave the client out of this pass"
    STOP = "end the run"


@dataclass(frozen=True)
class FailurePolicy:
    """Decides what follows a failure. All limits are here; callers count, ask, and do as the answer says."""

    on_client_error: str  # --on-client-error: stop, retry or skip
    client_retries: int  # --client-retries
    client_timeout: float | None  # --client-timeout, in seconds per client
    watchdog: float  # --watchdog: seconds to wait for the server, or for actors that are being started
    tries: int = 4  # failures in a row after which an actor's start, a group of clients or a server is hopeless
    patience: float = 10.0  # a call may take so many times what the slowest one took, and
    least_seconds: float = 60.0  # never less than this

    @classmethod
    def of(cls, config: RunConfig) -> FailurePolicy:
        return cls(config.on_client_error, config.client_retries, config.client_timeout, config.watchdog)

    def client_failed(self, failures: int) -> Decision:
        """A client's own code raised, or sent something unusable, for this many times in a pass."""
        if self.on_client_error == "stop":
            return Decision.STOP
        if failures <= self.client_retries:
            return Decision.RETRY
        return Decision.SKIP if self.on_client_error == "skip" else Decision.STOP

    def fused_client_failed(self) -> Decision:
        """One client of a fused group failed after their joint steps: the others' work stands if it can be skipped."""
        return Decision.SKIP if self.on_client_error == "skip" else Decision.RETRY

    def group_took_actor_down(self, deaths: int) -> Decision:
        """An actor was lost while it worked on this group of clients, for this many times in a pass."""
        return Decision.RETRY if deaths < self.tries else Decision.STOP

    def actor_lost(self, out_of_memory: bool, others: int) -> Decision:
        """A client actor died or is out of reach; without memory for it the others do its work."""
        return Decision.GIVE_UP if out_of_memory and others else Decision.REPLACE

    def actor_failed_to_start(self, failures: int, needed: bool) -> Decision:
        """An actor failed to start for this many times in a row; at the start of a run all are needed."""
        if failures < self.tries:
            return Decision.RETRY
        return Decision.STOP if needed else Decision.GIVE_UP

    def actor_on_other_hardware(self) -> Decision:
        """An actor came back on another kind of device: its results would differ in the last bits."""
        return Decision.GIVE_UP

    def server_lost(self, losses: int) -> Decision:
        """The server was lost this many times without a finished round in between."""
        return Decision.REPLACE if losses < self.tries else Decision.STOP

    def seconds_allowed(self, clients: int, seconds_expected: float | None) -> float:
        """How long a call may take before its actor counts as hung; `seconds_expected` by the slowest call so far."""
        if self.client_timeout:
            return self.client_timeout * clients
        if seconds_expected is None:
            return self.watchdog
        return self.least_seconds + self.patience * seconds_expected


@dataclass
class FaultCount:
    """How much has failed in a run so far."""

    failures: int = 0  # actors lost and clients that failed
    retries: int = 0  # clients that were run again


class RunFailure(RaysimError):
    """Something in an actor went wrong. Carries the traceback as text, so that it survives the way to the driver."""

    def __init__(self, message: str, traceback: str = ""):
        super().__init__(message, traceback)
        self.message, self.traceback = one_line(message), traceback

    def __str__(self) -> str:
        return self.message


class ServerLost(RunFailure):
    """The server actor died, or something it gave is gone: the run goes on from its last checkpoint."""

    out_of_memory = False  # whether it had no room on its GPU, so that a client actor has to give way


class DeviceFailure(RunFailure):
    """An actor's device failed it: never a client's fault, and the actor is of no use any more."""

    of_server = False  # then every client actor that reads what the server should have made fails with it


class OutOfMemory(DeviceFailure):
    """There is no memory left on the device; with fewer actors at once it may fit."""


class BrokenDevice(DeviceFailure):
    """An error of the device that sticks: every later call of the process would fail too."""


class ClientFailure(RunFailure):
    """A client's own code raised, or its update cannot be used."""
