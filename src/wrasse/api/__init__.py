"""What a program imports: App, and jobs, streams and leases as an App has them."""
