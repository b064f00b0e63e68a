variable "name" {
  type        = string
  description = "Name of the service; also of what belongs to it."
  default     = "zse"

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,23}[a-z0-9])?$", var.name))
    error_message = "The name has lower-case letters, digits and dashes, begins with a letter, 25 characters at most."
  }
}

variable "project" {
  type        = string
  description = "Project; null takes the provider's."
  default     = null
}

variable "region" {
  type        = string
  description = "Region with the GPU type, such as us-central1 or europe-west4."

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "A region looks like us-central1."
  }
}

variable "image" {
  type        = string
  description = "Image that zse build-image wrote, in a registry that Cloud Run can read. Name it by digest where you can."

  validation {
    condition     = length(var.image) > 0 && !can(regex("\\s|://", var.image))
    error_message = "The image is a reference such as us-docker.pkg.dev/PROJECT/REPOSITORY/NAME:TAG, without a scheme."
  }
}

variable "model_url" {
  type        = string
  description = "Address that the server reads the model from, such as s3://BUCKET/KEY. Empty: the model is in the image or the bucket."
  default     = ""

  validation {
    condition     = var.model_url == "" || can(regex("^(s3|hf|https)://[^\\s]+$", var.model_url))
    error_message = "A model address begins with s3://, hf:// or https://."
  }
}

variable "models_bucket" {
  type        = string
  description = "Cloud Storage bucket mounted at /models, read-only. Empty: none."
  default     = ""
}

variable "model_file" {
  type        = string
  description = "Name of the .zse file in models_bucket."
  default     = "model.zse"

  validation {
    condition     = can(regex("^[^/\\s][^\\s]*\\.zse$", var.model_file)) && !strcontains(var.model_file, "..")
    error_message = "The model file is a relative path that ends with .zse."
  }
}

variable "gpu_type" {
  type        = string
  description = "GPU: nvidia-l4 (24 GB) or nvidia-rtx-pro-6000 (96 GB)."
  default     = "nvidia-l4"

  validation {
    condition     = contains(["nvidia-l4", "nvidia-rtx-pro-6000"], var.gpu_type)
    error_message = "Cloud Run has nvidia-l4 and nvidia-rtx-pro-6000."
  }
}

variable "cpu" {
  type        = number
  description = "Processors; null takes the fewest that the GPU type allows (4 or 20)."
  default     = null

  validation {
    condition     = var.cpu == null || contains([4, 6, 8, 20, 30, 44], coalesce(var.cpu, 4))
    error_message = "With a GPU, Cloud Run has 4, 6 or 8 processors (L4), or 20, 30 or 44 (RTX PRO 6000)."
  }
}

variable "memory" {
  type        = string
  description = "Memory, such as 16Gi; null takes the least that the GPU type allows (16Gi or 80Gi). The weights do not go through it whole."
  default     = null

  validation {
    condition     = var.memory == null || can(regex("^[0-9]+Gi$", var.memory))
    error_message = "Memory is written as 16Gi."
  }
}

variable "zonal_redundancy" {
  type        = bool
  description = "Reserve GPUs in several zones. Dearer, and needs its own quota."
  default     = false
}

variable "min_instances" {
  type        = number
  description = "Instances that never sleep. 0 scales to zero."
  default     = 0

  validation {
    condition     = var.min_instances >= 0 && floor(var.min_instances) == var.min_instances
    error_message = "min_instances is a whole number, 0 or more."
  }
}

variable "max_instances" {
  type        = number
  description = "Instances at most; your GPU quota bounds it too."
  default     = 1

  validation {
    condition     = var.max_instances >= 1 && floor(var.max_instances) == var.max_instances
    error_message = "max_instances is a whole number, 1 or more."
  }
}

variable "concurrency" {
  type        = number
  description = "Requests that one instance works on before another is started."
  default     = 16

  validation {
    condition     = var.concurrency >= 1 && var.concurrency <= 1000
    error_message = "Cloud Run allows 1 to 1000 requests an instance."
  }
}

variable "startup_seconds" {
  type        = number
  description = "Until an instance that is not ready counts as broken."
  default     = 240

  validation {
    condition     = var.startup_seconds >= 2 && var.startup_seconds <= 240
    error_message = "Cloud Run promises a startup probe 240 seconds at most."
  }
}

variable "timeout_seconds" {
  type        = number
  description = "Longest answer, streamed or not."
  default     = 900

  validation {
    condition     = var.timeout_seconds >= 1 && var.timeout_seconds <= 3600
    error_message = "Cloud Run ends a request after 3600 seconds at the latest."
  }
}

variable "port" {
  type        = number
  description = "Port that the server binds; Cloud Run passes it as PORT."
  default     = 8000

  validation {
    condition     = var.port >= 1 && var.port <= 65535
    error_message = "A port is a number from 1 to 65535."
  }
}

variable "env" {
  type        = map(string)
  description = "Variables of the server. They are in the state in plain text: no secrets here."
  default     = {}

  validation {
    condition     = alltrue([for name in keys(var.env) : can(regex("^[A-Za-z_][A-Za-z0-9_]*$", name)) && name != "PORT"])
    error_message = "A variable's name has letters, digits and underscores; PORT is set by var.port."
  }
}

variable "secrets" {
  type        = map(string)
  description = "Variable of the server -> secret of Secret Manager, as SECRET or SECRET:VERSION. The value never enters the state."
  default     = {}

  validation {
    condition     = alltrue([for secret in values(var.secrets) : can(regex("^[A-Za-z0-9_-]+(:([0-9]+|latest))?$", secret))])
    error_message = "A secret is written as SECRET or SECRET:VERSION."
  }
}

variable "public" {
  type        = bool
  description = "Let anyone ask who knows the address. Otherwise Google's IAM asks for an identity token."
  default     = false
}

variable "invokers" {
  type        = list(string)
  description = "Who may ask when it is not public, such as serviceAccount:ci@PROJECT.iam.gserviceaccount.com."
  default     = []

  validation {
    condition     = alltrue([for member in var.invokers : can(regex("^(user|group|domain|serviceAccount|principal|principalSet):", member))])
    error_message = "An invoker is an IAM member, such as user:me@example.com."
  }
}

variable "ingress" {
  type        = string
  description = "Networks that reach the address."
  default     = "INGRESS_TRAFFIC_ALL"

  validation {
    condition = contains(
      ["INGRESS_TRAFFIC_ALL", "INGRESS_TRAFFIC_INTERNAL_ONLY", "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER"],
      var.ingress,
    )
    error_message = "Ingress is INGRESS_TRAFFIC_ALL, INGRESS_TRAFFIC_INTERNAL_ONLY or INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER."
  }
}

variable "network" {
  type        = string
  description = "VPC network for outgoing traffic. With Private Google Access, weights come faster from Cloud Storage. Empty: none."
  default     = ""
}

variable "subnetwork" {
  type        = string
  description = "Subnetwork of network."
  default     = ""
}

variable "deletion_protection" {
  type        = bool
  description = "Refuse to destroy the service."
  default     = false
}

variable "labels" {
  type        = map(string)
  description = "Labels of the service."
  default     = {}
}
