"""What the tests of the census share: a census of this process against a stand-in for torch, and a module `train` as the
user's script would be one.
"""
import gc
import sys
import types
import unittest

import fake_torch
import load

fake_torch.install()
CENSUS = load.load()


def take(**options):
    return CENSUS['take'](**dict({'budget': 60.0}, **options))


class CensusCase(unittest.TestCase):
    def setUp(self):
        gc.collect()
        module = types.ModuleType('train')  # reachable through sys.modules only
        sys.modules['train'] = module
        self.train = module.__dict__

    def tearDown(self):
        sys.modules.pop('train', None)
        self.train.clear()
        gc.collect()

    def run_in_train(self, source):
        exec(compile(source, '/home/user/train.py', 'exec'), self.train)

    def row_of(self, result, tensor):
        rows = [row for row in result.tensors if row.address == tensor._address]
        self.assertEqual(len(rows), 1)
        return rows[0]

    def holder_of(self, result, address):
        rows = [row for row in result.tensors if row.address == address]
        self.assertTrue(rows)
        self.assertGreaterEqual(rows[0].holder, 0, 'nobody found')
        return result.holders[rows[0].holder]
