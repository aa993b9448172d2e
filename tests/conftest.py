"""What all tests share: the table of conformance rules at the end of a run."""

from bunqueue_core.testing.report import pytest_runtest_makereport, pytest_terminal_summary

__all__ = ["pytest_runtest_makereport", "pytest_terminal_summary"]
