"""What does a process tell about itself while it runs?"""
