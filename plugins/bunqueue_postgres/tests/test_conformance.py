"""The core's conformance kit on PostgreSQL, by its public import."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bunqueue_core.testing.conformance import BrokerConformance, BrokerSetup

if TYPE_CHECKING:
    from conftest import OpenBroker

#: Rules of late completion: a job whose delivery has ended is completed by its late outcome. Brokers that share a database
#: fence the ended delivery instead, because its successor may run elsewhere already.
FENCED = frozenset({"S-080", "S-081"})


class TestPostgres(BrokerConformance):
    """Two brokers may be open at once; a crash leaves the first broker's leases as they are, as the death of its process would."""

    @pytest.fixture
    def broker_setup(self, open_broker: OpenBroker) -> BrokerSetup:
        return BrokerSetup(open=open_broker, crash=lambda _: open_broker(), missing_rules=FENCED)
