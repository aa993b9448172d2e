-- The time, epoch ms.
SELECT bunqueue.now_ms()
