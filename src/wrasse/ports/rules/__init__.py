"""What implementations of ports share: rules that are pure, and no port."""
