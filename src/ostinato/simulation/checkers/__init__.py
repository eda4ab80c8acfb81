"""One file for each invariant: it watches the history of a run and says what is violated."""
