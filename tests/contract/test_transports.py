"""The transport contract on both adapters."""

from __future__ import annotations

import socket

import pytest

from ostinato.testing.contracts.transport import TransportContract
from ostinato.testing.contracts.transport_harness import Links
from ostinato.wire.grpc_client import GrpcWorkerTransport
from ostinato.wire.grpc_server import GrpcNodeTransport
from ostinato.wire.inprocess import InProcessNetwork
from ostinato.wire.protocol import NodeTransport, WorkerTransport


class InProcessLinks:
    def __init__(self) -> None:
        self._network = InProcessNetwork()
        self._count = 0

    def node_transport(self, address: str | None = None) -> NodeTransport:
        self._count += 1
        return self._network.node_transport(f"node-{self._count}" if address is None else address)

    def worker_transport(self) -> WorkerTransport:
        return self._network.worker_transport()

    def dead_address(self) -> str:
        return "nowhere"


class GrpcLinks:
    def node_transport(self, address: str | None = None) -> NodeTransport:
        return GrpcNodeTransport("127.0.0.1:0" if address is None else address)

    def worker_transport(self) -> WorkerTransport:
        return GrpcWorkerTransport()

    def dead_address(self) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{probe.getsockname()[1]}"


class TestInProcess(TransportContract):
    @pytest.fixture
    def links(self) -> Links:
        return InProcessLinks()


class TestGrpc(TransportContract):
    @pytest.fixture
    def links(self) -> Links:
        return GrpcLinks()
