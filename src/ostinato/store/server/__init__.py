"""What the adapters of both servers share."""
