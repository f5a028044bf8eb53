from hypothesis import settings

# The same examples every time: a red check means a changed program, not an unlucky draw.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("repeatable")
