"""The contenders: Ostinato and its peers, each behind the same small interface."""
