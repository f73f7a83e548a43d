"""Measuring: suites, arms, peers, reports."""
