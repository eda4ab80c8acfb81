"""Documents of tasks: ``tasks.yaml``, bodies of REST and options of the SDK, read and written by one code."""
