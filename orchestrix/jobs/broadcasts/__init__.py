"""Broadcasts: jobs that run on every executor of a group. How do they begin, count their children and end?"""
