"""wrasse leases: inspect and change keys under leases."""
