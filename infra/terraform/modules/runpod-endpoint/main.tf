locals {
  is_queue = var.endpoint_type == "QUEUE"

  # What says whom the server asks for a key; ZSE_PUBLIC that it asks nobody.
  has_keys = length(setintersection(
    ["ZSE_API_KEYS", "ZSE_API_KEYS_FILE", "ZSE_PUBLIC"], concat(keys(var.env), keys(var.secrets))
  )) > 0

  env = merge(
    {
      ZSE_HOST            = "0.0.0.0"
      RUNPOD_INIT_TIMEOUT = tostring(var.startup_seconds)
      ZSE_DRAIN_SECONDS   = "25"
      # An image with its model leaves little of the container's disk free, and that is well.
      RUNPOD_MIN_DISK_PERCENT = "1"
    },
    # PORT would make a queue worker a load-balanced one.
    local.is_queue ? { ZSE_PORT = tostring(var.port) } : {
      PORT                      = tostring(var.port)
      PORT_HEALTH               = tostring(var.port)
      HEALTH_CHECK_PATH         = "/ping" # 204 while the weights load, then 200
    },
    local.has_keys ? {} : { ZSE_PUBLIC = "1" }, # RunPod asks for its key
    var.model_url == "" ? {} : { ZSE_MODEL = var.model_url },
    var.env,
    { for variable, secret in var.secrets : variable => "{{ RUNPOD_SECRET_${secret} }}" },
  )

  endpoint = merge(
    {
      name  = var.name
      type  = var.endpoint_type
      image = var.image
      env   = local.env
      disk  = var.disk_gb
      gpu   = { pools = var.gpu_types, count = 1 }
      workers = {
        min         = var.min_instances
        max         = var.max_instances
        idleTimeout = var.idle_seconds
      }
      flashboot = var.flashboot ? "FLASHBOOT" : "OFF"
      timeout   = var.timeout_seconds * 1000
    },
    { scaling = local.scaling[var.endpoint_type] },
    local.is_queue ? {} : { ports = ["${var.port}/http"] },
    var.registry_auth_id == "" ? {} : { registry = var.registry_auth_id },
    length(var.network_volume_ids) == 0 ? {} : { networkVolumes = var.network_volume_ids },
    length(var.regions) == 0 ? {} : { dataCenterIds = var.regions },
  )

  scaling = {
    QUEUE         = { type = "QUEUE_DELAY", queueDelay = 1 }
    LOAD_BALANCER = { type = "REQUEST_COUNT", requestCount = var.concurrency }
  }
}

resource "restapi_object" "endpoint" {
  path          = "/v2/serverless"
  id_attribute  = "id"
  update_method = "PATCH"
  force_new     = [var.endpoint_type] # a queue cannot become a load balancer
  data          = jsonencode(local.endpoint)

  lifecycle {
    precondition {
      condition     = var.min_instances <= var.max_instances
      error_message = "min_instances is above max_instances."
    }
    precondition {
      condition     = length(setintersection(keys(var.env), keys(var.secrets))) == 0
      error_message = "A variable is in env and in secrets."
    }
  }
}
