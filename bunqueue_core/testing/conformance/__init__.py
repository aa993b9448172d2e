"""The conformance kit: whether a storage driver keeps the rules that ``docs/reference/semantics.md`` numbers.

A driver's author derives one class and says how a broker is made::

    class TestMine(BrokerConformance):
        @pytest.fixture
        def broker_setup(self, tmp_path):
            return BrokerSetup(open=lambda: make_my_broker(tmp_path))

Cases ask what the broker announces (:class:`~bunqueue_core.broker.protocol.Capabilities`), never for its name: what is announced is
tested, the rest must be refused with ``CapabilityError`` and is reported as *not offered*. The kit is ordinary pytest; it needs no
plugin of pytest, and :mod:`bunqueue_core.testing.report` prints which rules passed.
"""

from bunqueue_core.testing.conformance.admission import AdmissionCases
from bunqueue_core.testing.conformance.claims import ClaimCases
from bunqueue_core.testing.conformance.control import DeadLetterCases, PauseCases
from bunqueue_core.testing.conformance.harness import BrokerSetup, Harness
from bunqueue_core.testing.conformance.hostile import HostileCases
from bunqueue_core.testing.conformance.journal import JournalConformance, JournalSetup
from bunqueue_core.testing.conformance.leases import LeaseCases
from bunqueue_core.testing.conformance.lifecycle import EventCases, LifecycleCases
from bunqueue_core.testing.conformance.losses import LossCases
from bunqueue_core.testing.conformance.ordering import OrderingCases
from bunqueue_core.testing.conformance.outcomes import CompletionCases, FailureCases
from bunqueue_core.testing.conformance.queries import ProgressCases, QueryCases, WaitCases
from bunqueue_core.testing.conformance.recovery import CrashCases, RestartCases

#: Version of the kit; a release that adds rules raises it, and the changelog lists them for plugin authors.
KIT_VERSION = 1


class BrokerConformance(
    AdmissionCases,
    OrderingCases,
    ClaimCases,
    LeaseCases,
    CompletionCases,
    FailureCases,
    ProgressCases,
    QueryCases,
    WaitCases,
    PauseCases,
    DeadLetterCases,
    LossCases,
    HostileCases,
    RestartCases,
    CrashCases,
    LifecycleCases,
    EventCases,
):
    """Every case that a broker is held to. Override ``broker_setup``; see the package's head."""


__all__ = ["KIT_VERSION", "BrokerConformance", "BrokerSetup", "Harness", "JournalConformance", "JournalSetup"]
