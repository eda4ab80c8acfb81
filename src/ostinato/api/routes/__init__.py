"""The routes of ``/api/v1``, one file a noun: they translate, the verbs are in ``control``."""
