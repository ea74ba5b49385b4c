"""Resources: the calls at the paths that authors have chosen for their sagas."""
