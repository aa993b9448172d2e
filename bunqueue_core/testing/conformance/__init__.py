"""The conformance kit: whether a storage driver keeps the rules that ``docs/reference/semantics.md`` numbers.

A driver's author derives one class and says how a broker is made::

    class TestMine(BrokerConformance):
        @pytest.fixture
        def broker_setup(self, tmp_path):
            return BrokerSetup(open=lambda: make_my_broker(tmp_path))

For a journal driver :func:`local_setup` makes that setup.

Cases ask what the broker announces (:class:`~bunqueue_core.broker.protocol.Capabilities`), never for its name: what is announced is
tested, the rest must be refused with ``CapabilityError`` and is reported as *not offered*. The kit is ordinary pytest; it needs no
plugin of pytest, and :mod:`bunqueue_core.testing.report` prints which rules passed.
"""

import pkgutil

import pytest

# Before the cases are imported: their assertions then show the values that differ, like those of any test.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

from bunqueue_core.testing.conformance.admission import AdmissionCases  # noqa: E402
from bunqueue_core.testing.conformance.claims import ClaimCases  # noqa: E402
from bunqueue_core.testing.conformance.control import DeadLetterCases, PauseCases  # noqa: E402
from bunqueue_core.testing.conformance.flows import DependencyCases, FamilyCases  # noqa: E402
from bunqueue_core.testing.conformance.harness import BrokerSetup, Harness  # noqa: E402
from bunqueue_core.testing.conformance.hostile import HostileCases  # noqa: E402
from bunqueue_core.testing.conformance.journal import JournalConformance, JournalSetup  # noqa: E402
from bunqueue_core.testing.conformance.keys import KeyCases  # noqa: E402
from bunqueue_core.testing.conformance.leases import LeaseCases  # noqa: E402
from bunqueue_core.testing.conformance.lifecycle import EventCases, LifecycleCases  # noqa: E402
from bunqueue_core.testing.conformance.limits import GroupCases, LimitCases  # noqa: E402
from bunqueue_core.testing.conformance.local import local_setup  # noqa: E402
from bunqueue_core.testing.conformance.losses import LossCases  # noqa: E402
from bunqueue_core.testing.conformance.management import LifetimeCases, ManagementCases  # noqa: E402
from bunqueue_core.testing.conformance.ordering import OrderingCases  # noqa: E402
from bunqueue_core.testing.conformance.outcomes import CompletionCases, FailureCases  # noqa: E402
from bunqueue_core.testing.conformance.queries import ProgressCases, QueryCases, WaitCases  # noqa: E402
from bunqueue_core.testing.conformance.recovery import CrashCases, RestartCases  # noqa: E402
from bunqueue_core.testing.conformance.schedules import ScheduleCases  # noqa: E402
from bunqueue_core.testing.conformance.webhooks import FeedCases, WebhookCases  # noqa: E402

#: Version of the kit; a release that adds rules raises it, and the changelog lists them for plugin authors.
KIT_VERSION = 3


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
    ManagementCases,
    KeyCases,
    LifetimeCases,
    DependencyCases,
    FamilyCases,
    LimitCases,
    GroupCases,
    ScheduleCases,
    DeadLetterCases,
    LossCases,
    HostileCases,
    RestartCases,
    CrashCases,
    LifecycleCases,
    EventCases,
    WebhookCases,
    FeedCases,
):
    """Every case that a broker is held to. Override ``broker_setup``; see the package's head."""


__all__ = [
    "KIT_VERSION",
    "AdmissionCases",
    "BrokerConformance",
    "BrokerSetup",
    "ClaimCases",
    "CompletionCases",
    "CrashCases",
    "DeadLetterCases",
    "DependencyCases",
    "EventCases",
    "FailureCases",
    "FamilyCases",
    "FeedCases",
    "GroupCases",
    "Harness",
    "HostileCases",
    "JournalConformance",
    "JournalSetup",
    "KeyCases",
    "LeaseCases",
    "LifecycleCases",
    "LifetimeCases",
    "LimitCases",
    "LossCases",
    "ManagementCases",
    "OrderingCases",
    "PauseCases",
    "ProgressCases",
    "QueryCases",
    "RestartCases",
    "ScheduleCases",
    "WaitCases",
    "WebhookCases",
    "local_setup",
]
