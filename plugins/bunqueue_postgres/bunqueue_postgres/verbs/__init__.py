"""The broker's verbs, one module a family."""
