"""Expressions of Prometheus as their selectors, and the samples of `/metrics` that a selector chooses."""

import re
from typing import NamedTuple

import promql_parser
from prometheus_client.parser import text_string_to_metric_families

ADDED = {"job", "instance"}
"""Labels that Prometheus adds to each sample of a target."""
_VARIABLES = {"$__rate_interval": "5m", "$instance": ".*"}


class Selector(NamedTuple):
    """A name of samples, the labels that they must have, and those by which they are summed up."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]
    labels: frozenset[str]

    def chooses(self, labels):
        """Return whether samples with these labels are chosen."""
        tests = {"Equal": lambda a, b: a == b, "NotEqual": lambda a, b: a != b,
                 "Re": re.fullmatch, "NotRe": lambda a, b: not re.fullmatch(a, b)}
        return all(tests[op](value, labels.get(name, "")) for name, op, value in self.matchers)


def selectors(text):
    """Return the selectors of an expression; raises ValueError for one that is wrong."""
    for name, value in _VARIABLES.items():
        text = text.replace(name, value)
    found, by = [], [frozenset()]

    def enter(expression):
        modifier = getattr(expression, "modifier", None)
        summed = isinstance(expression, promql_parser.AggregateExpr)
        by.append(frozenset(modifier.labels if modifier is not None else ()) if summed else by[-1])
        if isinstance(expression, promql_parser.VectorSelector):
            matchers = tuple((one.name, str(one.op).rpartition(".")[2], one.value)
                             for one in expression.matchers.matchers)
            found.append(Selector(expression.name, matchers, by[-1] | {one[0] for one in matchers}))

    def leave(_):
        by.pop()

    promql_parser.walk(promql_parser.parse(text), enter, leave)
    return found


def samples(exposition, target):
    """Return (name, labels) of each sample of a text of `/metrics`, with the labels of its target."""
    return [(one.name, {**one.labels, **target})
            for family in text_string_to_metric_families(exposition) for one in family.samples]
