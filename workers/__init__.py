"""The work of the service: what its commands do."""

from workers import app_registration, git_repo

__all__ = ["app_registration", "git_repo"]
