"""Pure rules that the implementations of ports share."""
