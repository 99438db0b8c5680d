"""Transactions: several keys committed together or not at all. States, log, enlistment, manager."""
