"""The real engine and sweeps in virtual time, among workers and producers that die, on a network that loses replies."""
